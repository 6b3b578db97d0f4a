"""Illegal programs: a plain legal call, and one thing wrong with it.

Everything but the mistake is plain, so that what happens is the mistake's: contiguous tensors of few elements, "index"
data, synchronous calls. Mistakes stand in the order of `corpus.case.ILLEGAL`, and are drawn only where they can be
made: there is no wrong device where a library has CPUs only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, TypeAlias

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

from corpus.case import ILLEGAL, REDUCING, ROOTED, WORLD, Call, Case, Group, Layout, Tensor, TensorSpec, World
from corpus.dtypes import DTYPES
from strategies.calls import Shape, gives_list, in_place, shapes, takes_list
from strategies.choose import choose
from strategies.dtypes import draw_dtype
from strategies.space import Menu, Space
from strategies.worlds import Members, draw_members, draw_size

CHUNKS: Final[tuple[Shape, ...]] = ((2,), (1,), (3,), (2, 3), (17,), (1000,))
"""Shapes that a rank contributes or receives."""

SEEDS: Final = range(16)

_TWIN: Final = "twin"
_Specs: TypeAlias = dict[str, TensorSpec]


@dataclass(frozen=True, slots=True)
class Draft:
    """A program on its way to a case: one legal call of `members`, among them `odd` (global), the rank that makes the
    mistake where it is one rank's. `menu` is what can be called there.
    """

    space: Space
    menu: Menu
    world: World
    members: Members
    odd: int
    call: Call
    chunk: Shape
    tensors: tuple[Tensor, ...]
    program: tuple[Call, ...]
    programs: tuple[tuple[int, tuple[Call, ...]], ...] = field(default=())

    @property
    def dtype(self) -> str:
        """The dtype of the call."""
        return self.tensors[0].spec.dtype

    def odd_runs(self, *calls: Call) -> Draft:
        """The same, where the odd rank runs other calls."""
        return replace(self, programs=((self.odd, calls),))

    def odd_holds(self, specs: _Specs) -> Draft:
        """The same, where the odd rank has tensors of its own."""
        tensors = [
            replace(tensor, overrides=((self.odd, specs[tensor.name]),)) if tensor.name in specs else tensor
            for tensor in self.tensors
        ]
        return replace(self, tensors=tuple(tensors))

    def all_hold(self, specs: _Specs) -> Draft:
        """The same with other tensors, on all ranks."""
        return replace(
            self,
            tensors=tuple(
                replace(tensor, spec=specs.get(tensor.name, tensor.spec)) if tensor.name in specs else tensor
                for tensor in self.tensors
            ),
        )


def illegal_cases(space: Space) -> SearchStrategy[Case]:
    """Return a strategy for illegal programs in a space: each can be run, and has one mistake, which it names.

    Raises:
        ValueError: there is no mistake to make in this space, which needs a world of two ranks.
    """
    menus: dict[int, dict[str, Menu]] = {}
    for size in sorted(set(space.worlds)):
        made = {name: menu for name in ILLEGAL if size > 1 and (menu := _menu(space, size, name))}
        if made:
            menus[size] = made
    if not menus:
        raise ValueError(
            f"illegal programs need a world of at least 2 ranks and a call to get wrong, not {space.worlds}"
        )
    return _illegal(space, menus)


@st.composite
def _illegal(draw: DrawFn, space: Space, menus: Mapping[int, Mapping[str, Menu]]) -> Case:
    size = draw_size(draw, tuple(menus))
    mistake = choose(draw, "mistake", tuple(menus[size]))
    draft = _MISTAKES[mistake](draw, _draft(draw, space, size, menus[size][mistake]))
    return Case(
        backend=space.backend,
        world=draft.world,
        tensors=draft.tensors,
        program=draft.program,
        flags=tuple(sorted(space.set_flags)),
        fault=space.fault,
        seed=choose(draw, "seed", SEEDS),
        illegal=mistake,
        programs=draft.programs,
    )


def _draft(draw: DrawFn, space: Space, size: int, menu: Menu) -> Draft:
    """Draw the legal call."""
    op = choose(draw, "op", tuple(menu))
    chosen = draw_members(draw, size, max(2, space.least_world(op)))
    members = tuple(range(size)) if chosen is None else chosen
    # Rank 1 first, the odd one out in a person's mind.
    place = choose(draw, "odd", (1, 0, *range(2, len(members))))
    root = choose(draw, "root", range(len(members)))
    reduce_op = choose(draw, "reduce op", tuple(menu[op]))
    dtype = draw_dtype(draw, menu[op][reduce_op])
    chunk = choose(draw, "chunk", CHUNKS)
    tensors = _tensors(space, op, len(members), chunk, dtype)
    call = Call(
        op,
        tuple(tensors[0]),
        tuple(tensors[1]),
        group=WORLD if chosen is None else "g0",
        reduce_op=reduce_op,
        root=root if op in ROOTED else None,
        # Of a send the odd rank is one of the two.
        peer=((root + 1) % len(members) if place == root else place) if op == "send_recv" else None,
    )
    return Draft(
        space=space,
        menu=menu,
        world=World(size, () if chosen is None else (Group("g0", chosen),)),
        members=members,
        odd=members[place],
        call=call,
        chunk=chunk,
        tensors=tuple(Tensor(name, spec) for name, spec in {**tensors[0], **tensors[1]}.items()),
        program=(call,),
    )


def _tensors(space: Space, op: str, ranks: int, chunk: Shape, dtype: str) -> tuple[_Specs, _Specs]:
    """Inputs and outputs of a call, the same on all ranks, by name."""
    if op == "barrier":
        return {}, {}
    given, taken = shapes(op, chunk, ranks, "joined", "even")
    plain = TensorSpec((), dtype, memory=space.memory_kind)
    contract = space.contract.ops[op]
    inputs = {f"x{place}" if takes_list(op) else "x": replace(plain, shape=each[0]) for place, each in enumerate(given)}
    if in_place(op, contract):
        return inputs, inputs
    letter, payload = ("out", None) if contract.returned else ("y", "poison")
    return inputs, {
        f"{letter}{place}" if gives_list(op) else letter: replace(plain, shape=each[0], payload=payload)
        for place, each in enumerate(taken)
    }


def _more_rows(draft: Draft, rows: int) -> _Specs:
    """The tensors of a call whose chunk has more rows (fewer, where `rows` is negative)."""
    chunk = (draft.chunk[0] + rows, *draft.chunk[1:])
    inputs, outputs = _tensors(draft.space, draft.call.op, len(draft.members), chunk, draft.dtype)
    return {**inputs, **outputs}


def _dtype(draw: DrawFn, draft: Draft) -> Draft:
    """The odd rank's tensors have another dtype, which the contract takes too."""
    others = [name for name in draft.menu[draft.call.op][draft.call.reduce_op] if name != draft.dtype]
    other = choose(draw, "other dtype", tuple(others))
    return draft.odd_holds({tensor.name: replace(tensor.spec, dtype=other) for tensor in draft.tensors})


def _shape(draw: DrawFn, draft: Draft) -> Draft:
    """The odd rank's tensors fit each other, and are longer than the others'."""
    return draft.odd_holds(_more_rows(draft, choose(draw, "more", (1, 2, 1000))))


def _reduce_op(draw: DrawFn, draft: Draft) -> Draft:
    """The odd rank reduces by another op."""
    others = [
        name
        for name, dtypes in draft.menu[draft.call.op].items()
        if name != draft.call.reduce_op and draft.dtype in dtypes
    ]
    return draft.odd_runs(replace(draft.call, reduce_op=choose(draw, "other reduce op", tuple(others))))


def _root(draw: DrawFn, draft: Draft) -> Draft:
    """The odd rank takes the next rank for the root; of a send, the sender for the receiver."""
    call = draft.call
    assert call.root is not None
    if call.peer is not None:
        return draft.odd_runs(replace(call, root=call.peer, peer=call.root))
    step = choose(draw, "step", range(1, len(draft.members)))
    return draft.odd_runs(replace(call, root=(call.root + step) % len(draft.members)))


def _group(draw: DrawFn, draft: Draft) -> Draft:
    """The odd rank calls in another group of the same ranks."""
    twin = Group(_TWIN, draft.members)
    draft = replace(draft, world=replace(draft.world, groups=(*draft.world.groups, twin)))
    return draft.odd_runs(replace(draft.call, group=_TWIN))


def _order(draw: DrawFn, draft: Draft) -> Draft:
    """The odd rank makes two calls the other way round."""
    op = choose(draw, "second op", tuple(op for op in draft.menu if op != draft.call.op))
    reduce_op = next(iter(draft.menu[op]))
    inputs, outputs = _tensors(
        draft.space, op, len(draft.members), draft.chunk, draft.menu[op][reduce_op][0] if op != "barrier" else "float32"
    )
    second = Call(
        op,
        tuple(f"{name}_2" for name in inputs),
        tuple(f"{name}_2" for name in outputs),
        group=draft.call.group,
        reduce_op=reduce_op,
        root=0 if op in ROOTED else None,
    )
    more = tuple(Tensor(f"{name}_2", spec) for name, spec in {**inputs, **outputs}.items())
    draft = replace(draft, tensors=draft.tensors + more, program=(draft.call, second))
    return draft.odd_runs(second, draft.call)


def _count(draw: DrawFn, draft: Draft) -> Draft:
    """The odd rank makes no call, or makes it once more."""
    return draft.odd_runs(*(draft.call,) * choose(draw, "calls", (0, 2)))


def _splits(draw: DrawFn, draft: Draft) -> Draft:
    """The odd rank is said to send one row more than it has, or one less."""
    ranks, rows = len(draft.members), draft.chunk[0]
    wrong = rows + choose(draw, "rows", (1, -1))
    me = draft.members.index(draft.odd)
    to = choose(draw, "to", range(ranks))
    matrix = tuple(
        tuple(wrong if (sender, receiver) == (me, to) else rows for receiver in range(ranks)) for sender in range(ranks)
    )
    return replace(draft, program=(replace(draft.call, splits=matrix),))


def _output_size(draw: DrawFn, draft: Draft) -> Draft:
    """The outputs of all ranks, or of the odd one, are a row short for each rank; what is written behind them shows."""
    short = _more_rows(draft, -1)
    inputs = set(draft.call.inputs)
    specs = {
        tensor.name: replace(short[tensor.name], layout=Layout(after=tensor.spec.numel - short[tensor.name].numel))
        for tensor in draft.tensors
        if tensor.name not in inputs
    }
    one_holder = draft.call.op in ("gather", "send_recv")
    who = choose(draw, "who", ("all",) if one_holder else ("all", "odd"))
    return draft.all_hold(specs) if who == "all" else draft.odd_holds(specs)


def _aliased(draw: DrawFn, draft: Draft) -> Draft:
    """The same tensor stands for each rank in the list of outputs."""
    first, *others = draft.call.outputs
    call = replace(draft.call, outputs=(first,) * (1 + len(others)))
    return replace(
        draft, tensors=tuple(tensor for tensor in draft.tensors if tensor.name not in others), program=(call,)
    )


def _unsupported(draw: DrawFn, draft: Draft) -> Draft:
    """All tensors have a dtype that the contract does not list."""
    contract = draft.space.contract.ops[draft.call.op]
    others = tuple(name for name in DTYPES if not contract.accepts(name, draft.call.reduce_op))
    other = choose(draw, "other dtype", others)
    return draft.all_hold({tensor.name: replace(tensor.spec, dtype=other) for tensor in draft.tensors})


def _device(draw: DrawFn, draft: Draft) -> Draft:
    """The odd rank's tensors are on the CPU."""
    return draft.odd_holds({tensor.name: replace(tensor.spec, memory="cpu") for tensor in draft.tensors})


_MISTAKES: Mapping[str, Callable[[DrawFn, Draft], Draft]] = {
    "dtype": _dtype,
    "shape": _shape,
    "reduce op": _reduce_op,
    "root": _root,
    "group": _group,
    "order": _order,
    "count": _count,
    "splits": _splits,
    "output size": _output_size,
    "aliased outputs": _aliased,
    "unsupported dtype": _unsupported,
    "device": _device,
}


def _menu(space: Space, size: int, mistake: str) -> Menu:
    """What can be called in a world of `size` ranks with this mistake in it: ops, reduce ops and dtypes, as in
    `Space.menu`."""
    whole = space.menu(size)
    found = {
        op: kept
        for op, reduce_ops in whole.items()
        if _can(space, op, mistake)
        and (
            kept := {
                reduce_op: dtypes
                for reduce_op in reduce_ops
                if reduce_op != "premul_sum" and (dtypes := _dtypes(space, op, reduce_ops, reduce_op, mistake))
            }
        )
    }
    return {} if mistake == "order" and len(found) < 2 else found


def _can(space: Space, op: str, mistake: str) -> bool:
    """Whether a call of this op can have this mistake."""
    contract = space.contract.ops[op]
    if mistake == "order":
        # A receive may wait for its sender behind other calls.
        return op != "send_recv"
    if mistake in ("group", "count"):
        return True
    if op == "barrier":
        return False
    return {
        "reduce op": op in REDUCING,
        "root": op in ROOTED,
        "splits": op == "all_to_all_single",
        "output size": not (in_place(op, contract) or contract.returned),
        "aliased outputs": gives_list(op) and not contract.returned,
        "device": space.memory_kind == "cuda",
    }.get(mistake, True)


def _dtypes(
    space: Space, op: str, reduce_ops: Mapping[str | None, tuple[str, ...]], reduce_op: str | None, mistake: str
) -> tuple[str, ...]:
    """The dtypes of calls with this reduce op that something else could have been given to."""
    dtypes = reduce_ops[reduce_op]
    if mistake == "dtype":
        return dtypes if len(dtypes) > 1 else ()
    if mistake == "reduce op":
        others = {
            dtype
            for other, accepted in reduce_ops.items()
            if other not in (reduce_op, "premul_sum")
            for dtype in accepted
        }
        return tuple(dtype for dtype in dtypes if dtype in others)
    if mistake == "unsupported dtype":
        return dtypes if any(not space.contract.ops[op].accepts(name, reduce_op) for name in DTYPES) else ()
    return dtypes
