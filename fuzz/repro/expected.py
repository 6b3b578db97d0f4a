"""What every rank must hold after a call, as torch expressions that are obviously right."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from corpus.case import REDUCING, WORLD, Call, Case
from corpus.dtypes import DTYPES, Kind
from corpus.meaning import pieces
from fuzz.repro.code import ReproError
from fuzz.repro.data import has_specials, is_exact

SUMS = '''
def sums(xs):
    """Every sum that some order of additions gives."""
    if len(xs) == 1:
        yield xs[0]
    for a, b in itertools.combinations(xs, 2):
        rest = [x for x in xs if x is not a and x is not b]
        yield from sums([a + b, *rest])
'''

WIDE_SUMS = '''
def sums(xs):
    """Every sum that some order of additions gives, where a partial sum may be rounded or stay wide."""
    if len(xs) == 1:
        yield xs[0].to(torch.{dtype})
    for a, b in itertools.combinations(xs, 2):
        rest = [x for x in xs if x is not a and x is not b]
        wide = a.float() + b.float()
        for partial in (wide, wide.to(torch.{dtype})):
            yield from sums([partial, *rest])
'''


@dataclass(frozen=True, slots=True)
class Argument:
    """What a call is given in one place: the tensor or list of tensors `names`, called `variable` in the script.

    `states`: for each name, the variable that lists what every rank should hold by now ("": nothing keeps it). Without
    them every rank holds what it made.
    """

    names: tuple[str, ...]
    variable: str
    is_list: bool
    states: tuple[str, ...] = ()

    def of(self, rank: str, index: str = "") -> str:
        """This argument as another rank has it, or one tensor of the list."""
        if self.states:
            state = f"[{', '.join(self.states)}][{index}]" if self.is_list else self.states[0]
            return f"{state}[{rank}]"
        return f"make_{self.variable}({rank})" + (f"[{index}]" if self.is_list and index else "")


@dataclass(frozen=True, slots=True)
class Expected:
    """`value` is compared with `got`; both are lists of tensors where `is_list`.

    `many`: `value` is an iterable of all the tensors that are legal. `where` is a condition that holds on the ranks
    that have a result. `helper` is a function that the value calls.
    """

    got: str
    value: str
    is_list: bool = False
    many: bool = False
    where: str = ""
    helper: str = ""


def expected(
    case: Case, call: Call, inputs: Argument, outputs: Argument, me: str, *, settled: bool | None = None
) -> Expected:
    """What the outputs of a call must hold on this rank (`me` is its place in the group).

    `settled` says whether they have one legal value, where that does not follow from the data that the inputs were made
    of. None: it does.
    """
    return _EXPECTED[call.op](_Context(case, call, inputs, outputs, me, settled))


@dataclass(frozen=True, slots=True)
class _Context:
    case: Case
    call: Call
    x: Argument
    out: Argument
    me: str
    settled: bool | None

    @property
    def exact(self) -> bool:
        """Whether any order of additions gives the same."""
        return is_exact(self.case, self.x.names) if self.settled is None else self.settled

    @property
    def special(self) -> bool:
        """Whether NaN, infinities and signed zeros may be among the inputs."""
        if self.settled is None:
            return has_specials(self.case, self.x.names)
        return not self.settled and has_specials(self.case, [tensor.name for tensor in self.case.tensors])

    @property
    def ranks(self) -> str:
        """The group's ranks, to loop over."""
        return "range(WORLD)" if self.call.group == WORLD else str(list(self.case.ranks(self.call)))

    @property
    def size(self) -> str:
        return "WORLD" if self.call.group == WORLD else str(len(self.case.ranks(self.call)))

    @property
    def empty(self) -> bool:
        """Whether some tensor is empty: torch's chunk() then gives too few."""
        return any(spec.numel == 0 for tensor, spec in self.case.specs() if tensor.name in self.x.names)

    def root(self) -> int:
        assert self.call.root is not None
        return self.case.ranks(self.call)[self.call.root]

    def shapes(self, argument: Argument) -> set[tuple[int, ...]]:
        ranks = self.case.ranks(self.call)
        return {self.case.tensor(name).on(rank).shape for name in argument.names for rank in ranks}

    def same_shape(self) -> bool:
        return len(self.shapes(self.x) | self.shapes(self.out)) == 1

    def where(self) -> str:
        """The condition under which this rank has a result."""
        ranks = self.case.ranks(self.call)
        have = [rank for rank in ranks if any(pieces(self.case, self.call, rank, name) for name in self.out.names)]
        return f"rank == {have[0]}" if len(have) == 1 < len(ranks) else ""

    def by_part(self) -> bool:
        """Whether complex numbers have to be compared part by part: each has its own legal results."""
        kinds = {DTYPES[spec.dtype].kind for tensor, spec in self.case.specs() if tensor.name in self.x.names}
        plain = self.call.reduce_op == "sum" and self.exact
        return Kind.COMPLEX in kinds and not plain

    def parts(self, tensor: str) -> str:
        """The real and imaginary parts of a complex tensor."""
        lazy = any(spec.layout.conj for _, spec in self.case.specs())
        return f"torch.view_as_real({tensor}{'.resolve_conj()' if lazy else ''})"

    def copied(self, value: str) -> Expected:
        """One tensor that is a copy."""
        if self.same_shape():
            return Expected(self.out.variable, value, where=self.where())
        return Expected(f"{self.out.variable}.reshape(-1)", f"{value}.reshape(-1)", where=self.where())


def _reduced(c: _Context) -> Expected:
    flat = "" if c.same_shape() else ".reshape(-1)"
    got = c.out.variable + flat
    index = c.me if c.call.op == "reduce_scatter" else ""
    cut = ""
    if c.call.op == "reduce_scatter_tensor":
        shapes = c.shapes(c.x) | c.shapes(c.out)
        flat = "" if all(len(shape) == 1 for shape in shapes) else ".reshape(-1)"
        got = c.out.variable + flat
        cut = f".{'tensor_split' if c.empty else 'chunk'}({c.size})[{c.me}]"
    x = f"{c.x.of('r', index)}{flat}{cut}"
    if c.by_part():
        got, x = c.parts(got), c.parts(x)
    xs = f"[{x} for r in {c.ranks}]"
    value, many, helper = _reduction(c, xs)
    return Expected(got, value, many=many, where=c.where(), helper=helper)


def _reduction(c: _Context, xs: str) -> tuple[str, bool, str]:
    """Expression of the reduction of the list `xs`, whether it gives many legal results, and the helper it needs."""
    op = str(c.call.reduce_op)
    dtype = DTYPES[c.case.tensor(c.x.names[0]).spec.dtype]
    count = len(c.case.ranks(c.call))
    each = xs[1:-1]
    narrow = dtype.kind is Kind.UNSIGNED and dtype.itemsize > 1
    fp8 = dtype.format is not None and dtype.itemsize == 1
    if dtype.kind is Kind.BOOL:
        how = {"product": "all(0)", "min": "all(0)", "band": "all(0)", "bxor": "sum(0) % 2 == 1"}.get(op, "any(0)")
        return f"torch.stack({xs}).{how}", False, ""
    if narrow or fp8:
        # torch computes with neither; widen, and come back.
        if op in ("max", "min") and dtype.itemsize == 8:
            raise ReproError(f"torch has no {op} of {dtype.name} to compare with")
        wide = ".long()" if narrow else ".float()"
        each = each.replace(" for r in ", f"{wide} for r in ", 1)
        value, many, helper = _plain(c, op, f"[{each}]", count, c.exact or narrow)
        return (value if many else f"({value}).to(torch.{dtype.name})"), many, helper
    exact = dtype.format is None or c.exact
    return _plain(c, op, xs, count, exact)


def _plain(c: _Context, op: str, xs: str, count: int, exact: bool) -> tuple[str, bool, str]:
    dtype = DTYPES[c.case.tensor(c.x.names[0]).spec.dtype]
    special = c.special
    folded = {
        "product": "torch.mul",
        "max": "torch.maximum",
        "min": "torch.minimum",
        "band": "torch.bitwise_and",
        "bor": "torch.bitwise_or",
        "bxor": "torch.bitwise_xor",
    }.get(op)
    total = f"sum({xs[1:-1]})"
    orders, helper = f"sums({xs})", SUMS
    if dtype.name in ("bfloat16", "float16") and op != "product":
        helper = WIDE_SUMS.format(dtype=dtype.name)
    if op == "product" and dtype.format is not None and count > 2 and not c.settled:
        text = SUMS.replace("a + b", "a * b").replace("additions", "multiplications").replace("sum", "product")
        return orders.replace("sums", "products"), True, text
    if folded is not None:
        value = f"functools.reduce({folded}, {xs})"
        if special and op in ("max", "min"):
            return f"[{value}, functools.reduce(torch.f{op}, {xs})]", True, ""
        return value, False, ""
    many = not exact and count > 2
    if op == "sum":
        return (orders, True, helper) if many else (total, False, "")
    if op == "premul_sum":
        scaled = xs.replace(" for r in ", f" * {c.call.factor} for r in ", 1)
        if many:
            return f"[*sums({scaled}), *({c.call.factor} * s for s in {orders})]", True, helper
        return f"[sum({scaled[1:-1]}), {total} * {c.call.factor}]", True, ""
    if dtype.format is None:
        return f'torch.div({total}, {c.size}, rounding_mode="trunc")', False, ""
    if not many and not special and count & (count - 1) == 0:
        return f"{total} / {c.size}", False, ""
    return f"averages({xs})", True, (helper if many else "") + _averages(c.size, many)


def _averages(size: str, many: bool) -> str:
    over = "sums({})" if many else "[sum({})]"
    return f'''
def averages(xs):
    """Every way to scale a sum, before or after: which one a library takes is its choice."""
    for scale in (lambda x: x / {size}, lambda x: x * (1 / {size})):
        yield from map(scale, {over.format("xs")})
        yield from {over.format("list(map(scale, xs))")}
'''


def _gathered(c: _Context) -> Expected:
    """all_gather_into_tensor: the inputs one after the other."""
    inputs, (shape, *others) = c.shapes(c.x), c.shapes(c.out)
    parts = f"[{c.x.of('r')} for r in {c.ranks}]"
    count = len(c.case.ranks(c.call))
    if len(inputs) == 1 and not others:
        (each,) = inputs
        if each and shape == (each[0] * count, *each[1:]):
            return Expected(c.out.variable, f"torch.cat({parts})")
        if shape == (count, *each):
            return Expected(c.out.variable, f"torch.stack({parts})")
    flat = f"[{c.x.of('r')}.reshape(-1) for r in {c.ranks}]"
    return Expected(f"{c.out.variable}.reshape(-1)", f"torch.cat({flat})")


def _list(c: _Context, index: str = "") -> Expected:
    """One tensor from each rank."""
    same = c.same_shape()
    value = f"[{c.x.of('r', index)}{'' if same else '.reshape(-1)'} for r in {c.ranks}]"
    got = c.out.variable if same else f"[t.reshape(-1) for t in {c.out.variable}]"
    return Expected(got, value, is_list=True, where=c.where())


def _exchanged(c: _Context) -> Expected:
    """all_to_all_single: this rank's rows of every input."""
    cut = f".{'tensor_split' if c.empty else 'chunk'}({c.size})[{c.me}]"
    ranks = c.ranks
    if c.call.splits is not None:
        cut = f".split(SPLITS[{'r' if c.call.group == WORLD else 'i'}])[{c.me}]"
        if c.call.group != WORLD:
            return Expected(c.out.variable, f"torch.cat([{c.x.of('r')}{cut} for i, r in enumerate({ranks})])")
    return Expected(c.out.variable, f"torch.cat([{c.x.of('r')}{cut} for r in {ranks}])")


def _received(c: _Context) -> Expected:
    assert c.call.peer is not None
    value = c.copied(c.x.of(str(c.root())))
    return Expected(value.got, value.value, where=f"rank == {c.case.ranks(c.call)[c.call.peer]}")


_EXPECTED: Mapping[str, Callable[[_Context], Expected]] = {
    **dict.fromkeys(REDUCING, _reduced),
    "broadcast": lambda c: c.copied(c.x.of(str(c.root()))),
    "all_gather_into_tensor": _gathered,
    "all_gather": _list,
    "gather": _list,
    "scatter": lambda c: c.copied(c.x.of(str(c.root()), c.me)),
    "all_to_all_single": _exchanged,
    "all_to_all": lambda c: _list(c, c.me),
    "send_recv": _received,
}
