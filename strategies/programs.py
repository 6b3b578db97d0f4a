"""Programs: calls over tensors, legal and within the memory budget by construction.

Each call is first drawn as a flat list of decisions, nearly the same list for every op, and then built into tensors. So
the shrinker can make one call simpler, or take it away, without disturbing the other decisions. A later call is drawn
like a first one, and then linked to the earlier ones where its link fits (`strategies.links`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Final

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn

from corpus.case import MAX_CALLS, ROOTED, Call, Case, Relation, Tensor, TensorSpec, World
from corpus.dtypes import DTYPES
from strategies.boundaries import draw_size, sizes
from strategies.calls import (
    FORMS,
    LISTS,
    PATTERNS,
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
from strategies.links import Link, Past, Wanted, computed, draw_link, legal, settle_regions, settle_waits
from strategies.payloads import draw_payload
from strategies.relations import RELATIONS, Origin, draw_relation
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


@dataclass(frozen=True, slots=True)
class Built:
    """A call with its tensors, and the local computation that comes before it, if any. `fresh`: its inputs are new."""

    call: Call
    tensors: tuple[Tensor, ...]
    before: tuple[Call, ...] = ()
    fresh: bool = True


class Program:
    """A program of `count` calls as it grows, in a world of `world` ranks."""

    def __init__(self, space: Space, world: int, menu: Menu, count: int) -> None:
        self.space = space
        self.world = world
        self.menu = menu
        self.ops = tuple(op for op in menu for _ in range(1 if op == "barrier" else 4))
        self.memory = space.memory // count
        """Bytes a rank for the tensors of one call."""
        self.count = count
        self.groups = Groups()
        self.calls: tuple[Call, ...] = ()
        self.tensors: tuple[Tensor, ...] = ()
        self.relations: tuple[Relation, ...] = ()
        self.drawn = 0
        self.last: tuple[Decisions, Built] | None = None
        """The last call, if it has tensors."""
        self.company: tuple[str, Members] | None = None
        """Name and ranks of the last call's group."""
        # By index of a call: how many more calls are begun before it is waited for.
        self._delays: dict[int, int] = {}
        # Indices of calls that are to be one region with the call before.
        self._joining: list[int] = []
        self._spent: frozenset[str] = frozenset()

    def case(self, *built: Built) -> Case:
        """The program so far, with these calls behind."""
        return Case(
            self.space.backend,
            World(self.world, self.groups.all()),
            self.tensors + tuple(tensor for each in built for tensor in each.tensors),
            self.calls + tuple(call for each in built for call in (*each.before, each.call)),
        )

    def consumes(self, op: str) -> bool:
        """Whether a call may overwrite its inputs, by contract or because the flags ask for it."""
        contract = self.space.contract
        may = contract.ops[op].returned and contract.in_place_from.value > 0
        return may or in_place(op, contract.ops[op])

    def add(self, drawn: Decisions, link: Link) -> None:
        """Build a call, linked to the earlier ones as far as they allow, and add it."""
        built = self._linked(drawn, link) if self.calls else None
        built = built or self._build(drawn)
        self.tensors += built.tensors
        self.calls += built.before
        self._append(built.call, link)
        self.last = drawn, built
        if self.space.contract.ops[drawn.op].returned and self.consumes(drawn.op):
            self._spent |= {*built.call.inputs, *built.call.outputs}

    def add_barrier(self, group: str, link: Link, *, async_op: bool) -> None:
        """Add a barrier."""
        self._append(Call("barrier", group=group, async_op=async_op), link)
        self.last = None

    def _append(self, call: Call, link: Link) -> None:
        late = link.late if link.late is not None and link.late < len(self.members(call)) else None
        self.calls += (replace(call, late=late),)
        self.drawn += 1
        self.company = call.group, self.members(call)
        if self.joined(link) is not None:
            self._joining.append(len(self.calls) - 1)
        if call.async_op and link.wait:
            self._delays[len(self.calls) - 1] = link.wait

    def place(self, chosen: Members | None, link: Link, least: int) -> tuple[Members, bool]:
        """Ranks of a call that needs at least so many, and whether they are the last call's."""
        if link.company != "own" and self.company is not None and len(self.company[1]) >= least:
            return self.company[1], True
        return tuple(range(self.world)) if chosen is None else chosen, False

    def name(self, chosen: Members | None, link: Link, *, shared: bool) -> str:
        """Name of a call's group: of the chosen ranks, or, `shared`, of the last call's."""
        if not shared or self.company is None:
            return self.groups.name(chosen)
        name, members = self.company
        return self.groups.twin(name, members) if link.company == "twin" else name

    def joined(self, link: Link) -> Decisions | None:
        """The last call, where a call with this link is to be one region with it."""
        there = link.region and self.last is not None and self.last[0].op in self.space.contract.regions.value
        return self.last[0] if there and self.last is not None else None

    def members(self, call: Call) -> Members:
        """Global ranks that take part in a call."""
        return World(self.world, self.groups.all()).ranks(call.group)

    def relate(self, name: str) -> None:
        """Add the calls of a relation with the last call, where it holds, is legal and fits."""
        if self.last is None or not self.last[1].fresh:
            return
        drawn, built = self.last
        partner = RELATIONS[name](
            Origin(
                self.space.contract,
                self.menu,
                self.world,
                drawn.members,
                built.call,
                {tensor.name: tensor for tensor in self.tensors},
                f"_{self.drawn + 1}",
            )
        )
        if partner is None or len(self.calls) + len(partner.calls) > MAX_CALLS:
            return
        case = legal(
            lambda: replace(
                self.case(),
                tensors=self.tensors + partner.tensors,
                program=self.calls + partner.calls,
                relations=(Relation(name, partner.left, partner.right, partner.exponent),),
            ),
            self.space.memory,
        )
        if case is not None:
            self.tensors, self.calls, self.relations = case.tensors, case.program, case.relations

    def finish(self) -> None:
        """Let calls be regions where that was drawn, and other asynchronous ones be waited for late."""
        if self._joining:
            self.calls = settle_regions(replace(self.case(), relations=self.relations), self._joining)
        delays = {index: delay for index, delay in self._delays.items() if self.calls[index].region is None}
        if delays:
            self.calls = settle_waits(self.calls, delays)

    def _linked(self, drawn: Decisions, link: Link) -> Built | None:
        """The call, with tensors of earlier calls; None where there are none that fit."""
        if not (link.reads or link.into):
            return None
        past = Past(self.case(), self._spent)
        for built in self._attempts(drawn, link, past):
            if legal(partial(self.case, built), self.space.memory) is not None:
                return built
        return None

    def _attempts(self, drawn: Decisions, link: Link, past: Past) -> Iterator[Built]:
        found = past.inputs(self._wanted(drawn), link.reads) if link.reads else None
        if found is not None:
            tensors, chunk = found
            dtype = tensors[0].on(drawn.members[drawn.root or 0]).dtype
            count = tensor_count(drawn.op, self.space.contract.ops[drawn.op], len(drawn.members))
            room = self.memory // (DTYPES[dtype].itemsize * count)
            drawn = replace(drawn, chunk=chunk, dtype=dtype, room=room, form="joined", pattern="even")
            if link.local is not None and len(tensors) == 1:
                name = f"z_{self.drawn + 1}"
                local = computed(link.local, tensors[0], drawn.members, drawn.group, name, self.space.memory_kind)
                if local is not None:
                    yield self._build(drawn, past, link, (local[0],), (local[1],))
            yield self._build(drawn, past, link, tensors)
        elif link.into:
            yield self._build(drawn, past, link)

    def _wanted(self, drawn: Decisions) -> Wanted:
        op, ranks = drawn.op, len(drawn.members)
        contract = self.space.contract.ops[op]
        return Wanted(
            op=op,
            contract=contract,
            reduce_op=drawn.reduce_op,
            dtypes=self.menu[op][drawn.reduce_op],
            members=drawn.members,
            readers=(drawn.members[drawn.root or 0],) if op in ("scatter", "send_recv") else drawn.members,
            writable=self.consumes(op),
            room=self.memory // tensor_count(op, contract, ranks),
        )

    def _build(
        self,
        drawn: Decisions,
        past: Past | None = None,
        link: Link | None = None,
        inputs: tuple[Tensor, ...] | None = None,
        before: tuple[Call, ...] = (),
    ) -> Built:
        """Give a call its tensors: new ones, but for `inputs`, and for buffers that the link takes again."""
        contract = self.space.contract.ops[drawn.op]
        given, taken = shapes(drawn.op, drawn.chunk, len(drawn.members), drawn.form, drawn.pattern)
        fresh = inputs is None
        if inputs is None:
            inputs = tuple(
                self._tensor(drawn, name, each, drawn.payload, writable=self.consumes(drawn.op))
                for name, each in zip(self._names("x", len(given), listed=takes_list(drawn.op)), given, strict=True)
            )
        outputs = inputs if in_place(drawn.op, contract) else None
        if outputs is None and past is not None and link is not None and link.into and not contract.returned:
            outputs = past.outputs(taken, drawn.dtype, drawn.members, inputs)
        if outputs is None:
            letter, payload = ("out", None) if contract.returned else ("y", "poison")
            names = self._names(letter, len(taken), listed=gives_list(drawn.op))
            outputs = tuple(
                self._tensor(drawn, name, each, payload, writable=True) for name, each in zip(names, taken, strict=True)
            )
        ragged = drawn.op == "all_to_all_single" and drawn.pattern != "even"
        call = Call(
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
        known = {tensor.name for tensor in self.tensors}
        new = {tensor.name: tensor for tensor in (*inputs, *outputs) if tensor.name not in known}
        return Built(call, tuple(new.values()), before, fresh)

    def _names(self, letter: str, count: int, *, listed: bool) -> list[str]:
        """x, or x0, x1, ... in a list; those of the second call end in _2."""
        suffix = f"_{self.drawn + 1}" if self.drawn else ""
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
        return Tensor(name, base, tuple(sorted(overrides, key=lambda override: override[0])))


@cache
def _counts(most: int) -> tuple[int, ...]:
    """Numbers of calls, nearly always one: Hypothesis makes mutants of the programs that have more, five of each."""
    return (*(1,) * min(24 * most, MOST - most), *range(2, most + 1))


@cache
def _swaps(ranks: int) -> tuple[int | None, ...]:
    """Ranks whose layouts differ, mostly none; a rank has the same place in every world, so that worlds can shrink."""
    return (*(None,) * 20, *range(min(ranks, 8)))


def draw_program(draw: DrawFn, space: Space, world: int, menu: Menu) -> Program:
    """Draw a program for a world of `world` ranks; most have one call."""
    count = choose(draw, "calls", _counts(space.max_calls))
    program = Program(space, world, menu, count)
    for _ in range(count):
        draw(_call(program))
    relation = draw_relation(draw)
    if relation is not None:
        program.relate(relation)
    program.finish()
    return program


@st.composite
def _call(draw: DrawFn, program: Program) -> None:
    """Draw one call and add it. A strategy of its own, so that the shrinker sees where a call begins and ends."""
    space, menu = program.space, program.menu
    op = choose(draw, "op", program.ops)
    contract = space.contract.ops[op]
    chosen = draw_members(draw, program.world, space.least_world(op), permuted=space.contract.permuted_groups.value)
    link = draw_link(draw, program.world, several=space.max_calls > 1, regions=bool(space.contract.regions.value))
    joined = program.joined(link)
    if joined is not None:
        op, contract = joined.op, space.contract.ops[joined.op]
    members, shared = program.place(chosen, link, space.least_world(op)) if joined is None else (joined.members, True)
    ranks = len(members)
    reduce_op = choose(draw, "reduce op", tuple(menu[op]))
    dtype = draw_dtype(draw, menu[op][reduce_op])
    if joined is not None:
        reduce_op, dtype = joined.reduce_op, joined.dtype
    itemsize = DTYPES[dtype].itemsize
    room = program.memory // (itemsize * tensor_count(op, contract, ranks))
    size = draw_size(draw, sizes(itemsize, space.thresholds, ranks, role(op), room))
    chunk = shape_of(size // ranks if op in WHOLE else size, draw_arrangement(draw))
    first, second = INPUTS.draw(draw, space.layouts), OUTPUTS.draw(draw, space.layouts)
    swapped = choose(draw, "swapped", _swaps(ranks))
    async_op = (seldom(draw, "async") or (link.wait > 0 and program.count > 1)) and contract.async_op
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
    like = program.last if link.like else None
    group = program.name(chosen, link, shared=shared or like is not None) if joined is None else joined.group
    if joined is not None:
        async_op, factor = joined.async_op, joined.factor
    if like is not None:
        program.add(replace(like[0], group=group, async_op=async_op), link)
        return
    if op == "barrier":
        program.add_barrier(group, link, async_op=async_op)
        return
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
        ),
        link,
    )
