"""Programs: calls over distinct tensors, legal and within the memory budget by construction.

Each call is first drawn as a flat list of decisions, nearly the same list for every op, and then built into tensors. So
the shrinker can make one call simpler, or take it away, without disturbing the other decisions.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Final

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn

from corpus.case import ROOTED, Call, Tensor, TensorSpec
from corpus.dtypes import DTYPES
from strategies.boundaries import draw_size, sizes
from strategies.calls import (
    FORMS,
    LISTS,
    PATTERNS,
    PLAIN_INPUT,
    WHOLE,
    Shape,
    gives_list,
    in_place,
    role,
    shapes,
    split_matrix,
    takes_list,
    tensor_count,
)
from strategies.choose import MOST, choose, seldom
from strategies.dtypes import draw_dtype
from strategies.layouts import INPUTS, OUTPUTS, PLAIN, Plan, lay_out
from strategies.payloads import draw_payload, payloads
from strategies.shapes import draw_arrangement, shape_of
from strategies.space import Menu, Space
from strategies.worlds import Groups, Members, draw_members

_FACTORS: Final = (2.0, 0.5)
"""Factors of premul_sum: powers of two round nothing. Integers take the first only."""


@dataclass(frozen=True, slots=True)
class Decisions:
    """One call as it was drawn, before it has tensors.

    `chunk` is the shape that a rank contributes or receives, `room` the elements that each base storage may have.
    `first` plans the inputs and `second` the outputs; group rank `swapped` has them the other way round. A tensor that
    is both takes `first`, or `second` where that is plain, so that a view survives when the op is shrunk to all_reduce.
    """

    op: str
    group: str
    members: Members
    reduce_op: str | None
    dtype: str
    room: int
    chunk: Shape
    first: Plan
    second: Plan
    swapped: int | None
    async_op: bool
    payload: str
    form: str
    pattern: str
    factor: float | None
    root: int | None
    peer: int | None
    again: Tensor | None


class Program:
    """A program as it grows, in a world of `world` ranks, with `memory` bytes a rank for the tensors of one call."""

    def __init__(self, space: Space, world: int, menu: Menu, memory: int) -> None:
        self.space = space
        self.world = world
        self.menu = menu
        self.ops = tuple(op for op in menu for _ in range(1 if op == "barrier" else 4))
        self.memory = memory
        self.groups = Groups()
        self.calls: list[Call] = []
        self.tensors: list[Tensor] = []
        # Inputs of the same shape on every rank that no call writes.
        self._readable: list[Tensor] = []

    def consumes(self, op: str) -> bool:
        """Whether a call may overwrite its inputs, by contract or because the flags ask for it."""
        contract = self.space.contract
        may = contract.ops[op].returned and contract.in_place_from.value > 0
        return may or in_place(op, contract.ops[op])

    def readable(self, op: str, reduce_op: str | None, ranks: int, room: int) -> Tensor | None:
        """Return the newest input that another call of this kind can read too."""
        for tensor in reversed(self._readable):
            spec = tensor.spec
            if (
                spec.dtype in self.menu[op][reduce_op]
                and spec.numel * (ranks if op in WHOLE else 1) <= room
                and spec.payload in payloads(reduce_op, spec.dtype, ranks)
            ):
                return tensor
        return None

    def add(self, drawn: Decisions) -> None:
        """Build the tensors of a call, and add it."""
        contract = self.space.contract.ops[drawn.op]
        mutates, consumes = in_place(drawn.op, contract), self.consumes(drawn.op)
        given, taken = shapes(drawn.op, drawn.chunk, len(drawn.members), drawn.form, drawn.pattern)
        if drawn.again is not None:
            inputs = [drawn.again]
        else:
            inputs = [
                self._tensor(drawn, name, each, drawn.payload, writable=consumes)
                for name, each in zip(self._names("x", len(given), listed=takes_list(drawn.op)), given, strict=True)
            ]
            self.tensors += inputs
        outputs = inputs
        if not mutates:
            letter, payload = ("out", None) if contract.returned else ("y", "poison")
            outputs = [
                self._tensor(drawn, name, each, payload, writable=True)
                for name, each in zip(self._names(letter, len(taken), listed=gives_list(drawn.op)), taken, strict=True)
            ]
            self.tensors += outputs
            if not consumes and drawn.op in PLAIN_INPUT and len(set(given[0])) == 1:
                self._readable += inputs
        ragged = drawn.op == "all_to_all_single" and drawn.pattern != "even"
        self.calls.append(
            Call(
                drawn.op,
                tuple(tensor.name for tensor in inputs),
                tuple(tensor.name for tensor in outputs),
                group=drawn.group,
                reduce_op=drawn.reduce_op,
                root=drawn.root,
                peer=drawn.peer,
                splits=split_matrix(drawn.pattern, len(drawn.members), drawn.chunk[0]) if ragged else None,
                factor=drawn.factor,
                async_op=drawn.async_op,
            )
        )

    def _names(self, letter: str, count: int, *, listed: bool) -> list[str]:
        """x, or x0, x1, ... in a list; those of the second call end in _2."""
        suffix = f"_{len(self.calls) + 1}" if self.calls else ""
        return [f"{letter}{place}{suffix}" for place in range(count)] if listed else [letter + suffix]

    def _tensor(
        self, drawn: Decisions, name: str, each: tuple[Shape, ...], payload: str | None, *, writable: bool
    ) -> Tensor:
        plans = (drawn.first, drawn.second)
        if payload == "poison" or (drawn.first == PLAIN and in_place(drawn.op, self.space.contract.ops[drawn.op])):
            plans = plans[::-1]

        def spec(shape: Shape, plan: Plan) -> TensorSpec:
            plain = TensorSpec(shape, drawn.dtype, memory=self.space.memory_kind, payload=payload)
            return plain if payload is None else lay_out(plain, plan, room=drawn.room, writable=writable)

        base = spec(each[0], plans[0])
        overrides = []
        for place, shape in enumerate(each):
            plan = plans[1] if place == drawn.swapped else plans[0]
            if shape != each[0] or plan != plans[0]:
                own = spec(shape, plan)
                if own != base:
                    overrides.append((drawn.members[place], own))
        return Tensor(name, base, tuple(overrides))


def _counts(most: int) -> tuple[int, ...]:
    """Numbers of calls, nearly always one: Hypothesis makes mutants of the programs that have more, five of each."""
    return (*(1,) * min(12 * most, MOST - most), *range(2, most + 1))


@cache
def _swaps(ranks: int) -> tuple[int | None, ...]:
    """Ranks whose layouts differ, mostly none; a rank has the same place in every world, so that worlds can shrink."""
    return (*(None,) * 20, *range(min(ranks, 8)))


def draw_program(draw: DrawFn, space: Space, world: int, menu: Menu) -> Program:
    """Draw a program for a world of `world` ranks; most have one call."""
    count = choose(draw, "calls", _counts(space.max_calls))
    program = Program(space, world, menu, space.memory // count)
    for _ in range(count):
        draw(_call(program))
    return program


@st.composite
def _call(draw: DrawFn, program: Program) -> None:
    """Draw one call and add it. A strategy of its own, so that the shrinker sees where a call begins and ends."""
    space, menu = program.space, program.menu
    op = choose(draw, "op", program.ops)
    contract = space.contract.ops[op]
    chosen = draw_members(draw, program.world, space.least_world(op))
    members = tuple(range(program.world)) if chosen is None else chosen
    group, ranks = program.groups.name(chosen), len(members)
    reduce_op = choose(draw, "reduce op", tuple(menu[op]))
    dtype = draw_dtype(draw, menu[op][reduce_op])
    itemsize = DTYPES[dtype].itemsize
    room = program.memory // (itemsize * tensor_count(op, contract, ranks))
    size = draw_size(draw, sizes(itemsize, space.thresholds, ranks, role(op), room))
    chunk = shape_of(size // ranks if op in WHOLE else size, draw_arrangement(draw))
    first, second = INPUTS.draw(draw, space.layouts), OUTPUTS.draw(draw, space.layouts)
    swapped = choose(draw, "swapped", _swaps(ranks))
    async_op = seldom(draw, "async") and contract.async_op
    payload = draw_payload(draw, reduce_op, dtype, ranks)
    # What follows depends on the op. It stands last, so that it disturbs nothing when the op is shrunk.
    variant = choose(draw, "variant", range(len(FORMS))) if op in WHOLE | LISTS else 0
    factor = (
        choose(draw, "factor", _FACTORS if DTYPES[dtype].format else _FACTORS[:1])
        if reduce_op == "premul_sum"
        else None
    )
    root = choose(draw, "root", range(ranks)) if op in ROOTED else None
    peer = (
        (root + 1 + choose(draw, "peer", range(ranks - 1))) % ranks if op == "send_recv" and root is not None else None
    )
    if op == "barrier":
        program.calls.append(Call(op, group=group))
        return
    again = None
    reads = op in PLAIN_INPUT and not program.consumes(op)
    if len(program.calls) > 0 and choose(draw, "again", (False, True)) and reads:
        again = program.readable(op, reduce_op, ranks, room)
    if again is not None:
        chunk, dtype, payload, variant = again.spec.shape, again.spec.dtype, str(again.spec.payload), 0
    if not chunk and op in WHOLE and not contract.stacked:
        chunk = (1,)  # scalars can only be stacked
    program.add(
        Decisions(
            op=op,
            group=group,
            members=members,
            reduce_op=reduce_op,
            dtype=dtype,
            room=room,
            chunk=chunk,
            first=first,
            second=second,
            swapped=swapped,
            async_op=async_op,
            payload=payload,
            form=FORMS[variant] if contract.stacked else "joined",
            pattern=PATTERNS[variant] if contract.uneven and op in LISTS | {"all_to_all_single"} and chunk else "even",
            factor=factor,
            root=root,
            peer=peer,
            again=again,
        )
    )
