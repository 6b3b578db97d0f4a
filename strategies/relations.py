"""Relations between results: calls that belong to a call that was drawn, and what then has to hold.

Each relation is a function of that call. It adds calls whose tensors take their data from the call's own, or does not
apply (None). Relations that keep the order of additions (a repetition, another layout, a scaling) take any data. Those
that may change it apply only where the order cannot matter: to copies, integers, extrema, and sums that are exact.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

from hypothesis.strategies import DrawFn

from corpus.case import CONTIGUOUS, REDUCING, Call, Data, Tensor, TensorSpec
from corpus.contract import Contract
from corpus.dtypes import DTYPES, Kind
from corpus.payload import exact_limit
from strategies.calls import Shape, in_place
from strategies.choose import Choice
from strategies.space import Menu
from strategies.worlds import Members

_SCALE: Final = 1
"""The exponent by which data is scaled."""

_SIMPLE: Final = frozenset({"all_reduce", "broadcast", "reduce", "send_recv"})
"""Collectives of one input and one output in which each element is by itself."""
_ELEMENTWISE: Final = _SIMPLE | {"all_gather", "gather", "scatter", "reduce_scatter", "all_to_all"}


@dataclass(frozen=True, slots=True)
class Partner:
    """What a relation adds to a program, and the names of the results that it relates: `left` to `right`, times
    2**`exponent`.
    """

    tensors: tuple[Tensor, ...]
    calls: tuple[Call, ...]
    left: tuple[str, ...]
    right: tuple[str, ...]
    exponent: int = 0


@dataclass(frozen=True, slots=True)
class Origin:
    """The call that a relation starts from, whose inputs are new. Tensors that a relation adds end in `suffix`."""

    contract: Contract
    menu: Menu
    world: int
    members: Members
    call: Call
    tensors: Mapping[str, Tensor]
    suffix: str

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        """The call's inputs."""
        return tuple(self.tensors[name] for name in self.call.inputs)

    @property
    def outputs(self) -> tuple[Tensor, ...]:
        """The call's outputs."""
        return tuple(self.tensors[name] for name in self.call.outputs)

    @property
    def spec(self) -> TensorSpec:
        """The first input on the first rank of the group that passes one."""
        return self.inputs[0].on(self.members[self.call.root or 0])

    @property
    def shape(self) -> Shape | None:
        """The shape of all inputs on all members; None where they differ."""
        shapes = {tensor.on(rank).shape for tensor in self.inputs for rank in self.members}
        return shapes.pop() if len(shapes) == 1 else None

    @property
    def out_of_place(self) -> bool:
        """Whether the outputs are other tensors than the inputs."""
        return not in_place(self.call.op, self.contract.ops[self.call.op])

    @property
    def name(self) -> str:
        """The first letters of new inputs that are no list."""
        return f"x{self.suffix}"

    def offers(self, op: str) -> bool:
        """Whether another collective takes the same dtype and reduce op, and writes to buffers of the caller."""
        reduce_op = self.call.reduce_op if op in REDUCING else None
        contract = self.contract.ops.get(op)
        return (
            contract is not None
            and not contract.returned
            and not in_place(op, contract)
            and len(self.members) >= contract.min_world
            and self.spec.dtype in self.menu.get(op, {}).get(reduce_op, ())
        )

    def exact(self, *, special: bool = False) -> bool:
        """Whether the order of operations cannot matter. `special`: nor is it to matter where an input is NaN."""
        call, spec = self.call, self.spec
        dtype, ranks = DTYPES[spec.dtype], len(self.members)
        if call.reduce_op is None or call.reduce_op in ("band", "bor", "bxor"):
            return True
        if call.reduce_op in ("max", "min"):
            return special or spec.payload != "special" or self.contract.nan_extremum.value == "propagates"
        if dtype.kind in (Kind.SIGNED, Kind.UNSIGNED, Kind.BOOL):
            return call.reduce_op in ("sum", "product")
        if call.reduce_op == "product" or spec.payload not in ("index", "exact"):
            return False
        if call.reduce_op == "avg" and ranks & (ranks - 1):
            return False
        return max(exact_limit(dtype) // self.world, 1) * ranks <= exact_limit(dtype)

    def like(self, tensor: Tensor, data: Data | None = None, *, dense: bool = False) -> Tensor:
        """A new tensor of the same shapes, and layouts unless it is to be `dense`."""

        def spec(old: TensorSpec) -> TensorSpec:
            return replace(old, layout=CONTIGUOUS) if dense else old

        overrides = tuple((rank, spec(old)) for rank, old in tensor.overrides)
        return Tensor(self.renamed(tensor.name), spec(tensor.spec), overrides, data)

    def renamed(self, name: str) -> str:
        """The name of the tensor that stands for this one: y0_2 is y0_3 in the third call."""
        return name.split("_")[0] + self.suffix

    def fresh(self, name: str, shape: Shape, data: Data | None = None) -> Tensor:
        """A new contiguous tensor: an input that takes its data from another, or an output."""
        returned = self.contract.ops[self.call.op].returned
        payload = self.spec.payload if data is not None else None if returned else "poison"
        return Tensor(name, TensorSpec(shape, self.spec.dtype, memory=self.spec.memory, payload=payload), data=data)

    def again(
        self,
        *,
        shift: int = 0,
        exponent: int = 0,
        dense: bool = False,
        async_op: bool | None = None,
    ) -> Partner:
        """The same call once more, on data that are taken from its own, with tensors of the same shapes."""
        inputs = tuple(
            self.like(tensor, Data(tensor.name, shift=shift, exponent=exponent), dense=dense) for tensor in self.inputs
        )
        outputs = tuple(self.like(tensor, dense=dense) for tensor in self.outputs) if self.out_of_place else inputs
        call = replace(self.call, inputs=_names(inputs), outputs=_names(outputs))
        if async_op is not None:
            call = replace(call, async_op=async_op)
        new = {tensor.name: tensor for tensor in (*inputs, *outputs)}
        return Partner(tuple(new.values()), (call,), call.outputs, self.call.outputs, exponent)

    def part(self, start: int, length: int, letter: str = "") -> tuple[tuple[Tensor, ...], Call]:
        """The same call on `length` elements of each input, from `start` on, in one dimension."""
        inputs = tuple(
            self.fresh(letter + self.renamed(tensor.name), (length,), Data(tensor.name, start))
            for tensor in self.inputs
        )
        outputs = inputs
        if self.out_of_place:
            outputs = tuple(self.fresh(letter + self.renamed(name), (length,)) for name in self.call.outputs)
        new = {tensor.name: tensor for tensor in (*inputs, *outputs)}
        return tuple(new.values()), replace(self.call, inputs=_names(inputs), outputs=_names(outputs))


def _names(tensors: tuple[Tensor, ...]) -> tuple[str, ...]:
    return tuple(tensor.name for tensor in tensors)


def repeat(origin: Origin) -> Partner | None:
    """The same call on the same data gives the same."""
    return origin.again()


def asynchronous(origin: Origin) -> Partner | None:
    """A call that is waited for gives what a synchronous one gives."""
    if not origin.contract.ops[origin.call.op].async_op:
        return None
    return origin.again(async_op=not origin.call.async_op)


def contiguous(origin: Origin) -> Partner | None:
    """A view gives what its contiguous copy gives."""
    specs = [tensor.on(rank) for tensor in (*origin.inputs, *origin.outputs) for rank in origin.members]
    if all(spec.layout == CONTIGUOUS for spec in specs):
        return None
    return origin.again(dense=True)


def scaling(origin: Origin) -> Partner | None:
    """Data times a power of two give the result times that power: away from the range's ends no rounding changes."""
    dtype = DTYPES[origin.spec.dtype]
    plain = ("index", "exact") if origin.call.reduce_op == "avg" else ("index", "exact", "wide")
    if dtype.format is None or origin.call.reduce_op == "product" or origin.spec.payload not in plain:
        return None
    return origin.again(exponent=_SCALE)


def permutation(origin: Origin) -> Partner | None:
    """The ranks' data in another order give the same, even where the contract leaves open what a NaN gives."""
    if origin.call.op not in REDUCING or len(origin.members) != origin.world or origin.world < 2:
        return None
    if origin.shape is None or not origin.exact(special=True):
        return None
    return origin.again(shift=1)


def prefix(origin: Origin) -> Partner | None:
    """The first half of the elements gives the first half of the result: of a list, of its last tensor."""
    if origin.call.op not in _ELEMENTWISE or origin.shape is None or origin.spec.numel < 2 or not origin.exact():
        return None
    tensors, call = origin.part(0, origin.spec.numel // 2)
    return Partner(tensors, (call,), call.outputs[-1:], origin.call.outputs[-1:])


def split(origin: Origin) -> Partner | None:
    """Two calls on two parts of the elements give the parts of the result."""
    if origin.call.op not in _SIMPLE or origin.shape is None or origin.spec.numel < 2 or not origin.exact():
        return None
    first = (origin.spec.numel + 1) // 2
    parts = (origin.part(0, first, "a"), origin.part(first, origin.spec.numel - first, "b"))
    return Partner(
        tuple(tensor for tensors, _ in parts for tensor in tensors),
        tuple(call for _, call in parts),
        tuple(name for _, call in parts for name in call.outputs),
        origin.call.outputs,
    )


def two_steps(origin: Origin) -> Partner | None:
    """A reduce_scatter and an all_gather of its results are an all_reduce."""
    ranks = len(origin.members)
    each = origin.spec.numel // ranks
    if origin.call.op != "all_reduce" or origin.shape is None or each == 0 or not origin.exact():
        return None
    if not (origin.offers("reduce_scatter_tensor") and origin.offers("all_gather_into_tensor")):
        return None
    given = origin.fresh(origin.name, (each * ranks,), Data(origin.call.inputs[0]))
    middle, taken = (
        Tensor(name + origin.suffix, TensorSpec(shape, given.spec.dtype, memory=given.spec.memory, payload="poison"))
        for name, shape in (("s", (each,)), ("y", given.spec.shape))
    )
    plain = replace(origin.call, async_op=False)
    calls = (
        replace(plain, op="reduce_scatter_tensor", inputs=(given.name,), outputs=(middle.name,)),
        Call("all_gather_into_tensor", (middle.name,), (taken.name,), group=plain.group),
    )
    return Partner((given, middle, taken), calls, (taken.name,), origin.call.outputs)


def at_the_root(origin: Origin) -> Partner | None:
    """An all_gather gives every rank what a gather gives the root."""
    if origin.call.op != "gather" or not origin.offers("all_gather"):
        return None
    found = origin.again()
    return replace(found, calls=(replace(found.calls[0], op="all_gather", root=None),))


def list_form(origin: Origin) -> Partner | None:
    """A list of tensors holds what one tensor holds."""
    call, ranks = origin.call, len(origin.members)
    op = _LIST_FORM.get(call.op)
    if op is None or call.splits is not None or origin.shape is None or not origin.exact() or not origin.offers(op):
        return None
    whole = origin.spec.numel
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    if call.op == "all_gather_into_tensor":
        inputs, each = (origin.fresh(origin.name, (whole,), Data(call.inputs[0])),), whole
    else:
        each = whole // ranks
        inputs = tuple(
            origin.fresh(f"x{place}{origin.suffix}", (each,), Data(call.inputs[0], place * each))
            for place in range(ranks)
        )
    if call.op == "reduce_scatter_tensor":
        outputs = (origin.fresh(f"y{origin.suffix}", (each,)),)
    else:
        outputs = tuple(origin.fresh(f"y{place}{origin.suffix}", (each,)) for place in range(ranks))
    partner = replace(call, op=op, inputs=_names(inputs), outputs=_names(outputs))
    return Partner((*inputs, *outputs), (partner,), partner.outputs, call.outputs)


_LIST_FORM: Final = {
    "all_gather_into_tensor": "all_gather",
    "reduce_scatter_tensor": "reduce_scatter",
    "all_to_all_single": "all_to_all",
}

Function: TypeAlias = Callable[[Origin], Partner | None]

RELATIONS: Final[Mapping[str, Function]] = {
    "repeat": repeat,
    "async = sync": asynchronous,
    "view = contiguous copy": contiguous,
    "scaling": scaling,
    "permutation": permutation,
    "prefix": prefix,
    "split = whole": split,
    "reduce_scatter + all_gather = all_reduce": two_steps,
    "gather = all_gather": at_the_root,
    "list = tensor": list_form,
}
"""By name, in shrinking order."""

_RELATION: Final = Choice("relation", (*(None,) * 30, *RELATIONS))


def draw_relation(draw: DrawFn) -> str | None:
    """Draw a relation for the last call of a program, or mostly none; half of them will not apply."""
    return _RELATION.draw(draw)
