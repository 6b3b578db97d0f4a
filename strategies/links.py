"""How a call goes on from the calls before it: what it reads and writes again, over which group, and when it is waited
for.

A link is drawn without looking at the program, the same number of choices for every call, and then applied as far as
the program allows. So it shrinks on its own, and a call that becomes the first one loses nothing but its link.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from hypothesis.strategies import DrawFn

from corpus.case import Call, Case, CaseError, Tensor, TensorSpec
from corpus.contract import OpContract
from corpus.dtypes import DTYPES, Kind
from corpus.meaning import Flow, check
from corpus.payload import exact_limit
from strategies.calls import Shape, takes_list
from strategies.choose import Choice, choose
from strategies.payloads import MEMBERSHIP, SUMS, payloads
from strategies.worlds import Members

_COMPANY: Final = Choice("company", (*("own",) * 4, "same", "twin"))
_LIKE: Final = Choice("like the last call", (*(False,) * 3, True))
_READS: Final = Choice("read again", (0, 0, 0, 1, 1, 1, 2, 3))
_LOCAL: Final = Choice("local", (*(None,) * 5, "copy", "negate", "double"))
_INTO: Final = Choice("buffer again", (False, True))
_WAIT: Final = Choice("wait", (*(0,) * 6, 1, 2, 4))
_REGION: Final = Choice("region", (False, True))

_PUNCTUAL: Final = 60
"""A call is on time this many times as often as any one rank is late: each late rank costs a twentieth of a second."""


@dataclass(frozen=True, slots=True)
class Link:
    """How a call goes on; of a first call only `late` means something.

    `company`: its group is its own, that of the last call ("same"), or another group of the same ranks ("twin").
    `like`: it is the last call again, on other data. `reads`: its inputs are new (0), or the n-th newest tensors that
    fit; `local` is computed of them before. `into`: its outputs are those of an earlier call, where they fit. `wait`:
    how many more calls are begun before it is waited for. `late`: the group rank that begins late. `region`: it is one
    region with the last call.
    """

    company: str
    like: bool
    reads: int
    local: str | None
    into: bool
    wait: int
    late: int | None
    region: bool = False


def draw_link(draw: DrawFn, world: int, *, several: bool, regions: bool) -> Link:
    """Draw a link for a call in a world of `world` ranks, in a program that may have `several` calls, and `regions`;
    every choice is plain first.
    """
    late = choose(draw, "late", (*(None,) * _PUNCTUAL, *range(min(world, 8))))
    if not several:
        return Link("own", like=False, reads=0, local=None, into=False, wait=0, late=late)
    return Link(
        company=_COMPANY.draw(draw),
        like=_LIKE.draw(draw),
        reads=_READS.draw(draw),
        local=_LOCAL.draw(draw),
        into=_INTO.draw(draw),
        wait=_WAIT.draw(draw),
        late=late,
        region=regions and _REGION.draw(draw),
    )


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the inputs of a call have to be: of a dtype in `dtypes`, so small that no tensor of the call has more than
    `room` bytes, and, where it writes them (`writable`), the caller's.

    `members` are the group's global ranks, `readers` those of them that pass inputs.
    """

    op: str
    contract: OpContract
    reduce_op: str | None
    dtypes: tuple[str, ...]
    members: Members
    readers: Members
    writable: bool
    room: int


class Past:
    """The calls of a program so far, and what is known of their tensors.

    `spent` names tensors that a call may have overwritten though they are inputs, and that share memory with those.
    """

    def __init__(self, case: Case, spent: frozenset[str]) -> None:
        self._case = case
        self._flow = Flow(case)
        self._spent = spent

    def inputs(self, wanted: Wanted, nth: int) -> tuple[tuple[Tensor, ...], Shape] | None:
        """The `nth` newest tensors (1: the newest; the oldest, where there are fewer) that a call can read again, and
        the shape of its chunk; None: there are none.
        """
        found = None
        for tensors in self._candidates(wanted):
            chunk = self._chunk(wanted, tensors)
            if chunk is not None:
                found = tensors, chunk
                nth -= 1
                if not nth:
                    break
        return found

    def _candidates(self, wanted: Wanted) -> Iterator[tuple[Tensor, ...]]:
        if not takes_list(wanted.op):
            yield from ((tensor,) for tensor in reversed(self._case.tensors))
            return
        for call in reversed(self._case.program):
            for names in dict.fromkeys((call.outputs, call.inputs)):
                if len(names) == len(wanted.members):
                    yield tuple(self._case.tensor(name) for name in names)

    def _chunk(self, wanted: Wanted, tensors: tuple[Tensor, ...]) -> Shape | None:
        """The chunk of a call that reads these tensors; None where it cannot."""
        shapes = {tensor.on(rank).shape for tensor in tensors for rank in wanted.readers}
        if len(shapes) > 1 or not all(
            self._readable(wanted, tensor, rank) for tensor in tensors for rank in wanted.readers
        ):
            return None
        (shape,) = shapes
        ranks = len(wanted.members)
        spec = tensors[0].on(wanted.readers[0])
        if spec.dtype not in wanted.dtypes:
            return None
        if wanted.writable and any(
            tensor.on(rank).overlaps or tensor.on(rank).payload is None or tensor.on(rank).shape != shape
            for tensor in tensors
            for rank in wanted.members
        ):
            return None
        largest = spec.numel * (ranks if wanted.op == "all_gather_into_tensor" else 1)
        if largest * DTYPES[spec.dtype].itemsize > wanted.room:
            return None
        if wanted.op in ("reduce_scatter_tensor", "all_to_all_single"):
            return (shape[0] // ranks, *shape[1:]) if shape and shape[0] % ranks == 0 else None
        if wanted.op == "all_gather_into_tensor" and not shape and not wanted.contract.stacked:
            return None
        return shape

    def _readable(self, wanted: Wanted, tensor: Tensor, rank: int) -> bool:
        """Whether what a tensor holds on a rank has one legal value there, and one that the call can be judged by."""
        if tensor.name in self._spent:
            return False
        spec, known = tensor.on(rank), self._flow.known(tensor.name, rank)
        written = known.writer >= 0
        if not known.settled or (spec.payload in (None, "poison") and not written):
            return False
        dtype, ranks = DTYPES[spec.dtype], len(wanted.members)
        if wanted.reduce_op in SUMS and dtype.kind in (Kind.FLOAT, Kind.COMPLEX) and ranks > MEMBERSHIP:
            plain = not written and spec.payload in payloads(wanted.reduce_op, spec.dtype, ranks)
            return plain or (known.limit is not None and known.limit * ranks <= exact_limit(dtype))
        return True

    def outputs(
        self, shapes: Sequence[tuple[Shape, ...]], dtype: str, members: Members, inputs: tuple[Tensor, ...]
    ) -> tuple[Tensor, ...] | None:
        """The newest buffers that the caller allocated and a call has written, of these shapes (by tensor, then by
        group rank); None: there are none.
        """
        for call in reversed(self._case.program):
            if call.local or call.outputs == call.inputs or len(call.outputs) != len(shapes):
                continue
            tensors = tuple(self._case.tensor(name) for name in call.outputs)
            fit = all(
                (spec.payload, spec.dtype, spec.shape) == ("poison", dtype, each[place])
                for tensor, each in zip(tensors, shapes, strict=True)
                for place, rank in enumerate(members)
                for spec in (tensor.on(rank),)
            )
            if fit and not set(call.outputs) & {tensor.name for tensor in inputs}:
                return tensors
        return None


def computed(
    op: str, tensor: Tensor, members: Members, group: str, name: str, memory: str
) -> tuple[Tensor, Call] | None:
    """A local computation of a tensor on all members, in place where that is possible and not a copy, else in a new
    tensor, `name`; None where the tensor has another shape on each.
    """
    specs = [tensor.on(rank) for rank in members]
    writable = all(spec.payload is not None and not spec.overlaps for spec in specs)
    if len({spec.shape for spec in specs}) > 1:
        return None
    result = tensor
    if op == "copy" or not writable:
        result = Tensor(name, TensorSpec(specs[0].shape, specs[0].dtype, memory=memory, payload="poison"))
    return result, Call(op, (tensor.name,), (result.name,), group=group)


def legal(build: Callable[[], Case], memory: int) -> Case | None:
    """Build a case; None where it is not legal, or does not fit in `memory` bytes a rank."""
    try:
        case = build()
        check(case)
    except CaseError:
        return None
    return case if case.memory() <= memory else None


def settle_waits(calls: Sequence[Call], delays: Mapping[int, int]) -> tuple[Call, ...]:
    """Wait for asynchronous calls, by index, so many calls later as are given, or as many as their tensors allow."""
    settled = list(calls)
    for index, delay in delays.items():
        flying, last = calls[index], index
        for later in range(index + 1, min(index + delay, len(calls) - 1) + 1):
            own = calls[later]
            if {*flying.outputs} & {*own.inputs, *own.outputs} or {*own.outputs} & {*flying.inputs}:
                break
            last = later
        if last > index:
            settled[index] = replace(flying, wait=last)
    return tuple(settled)


def settle_regions(case: Case, joining: Sequence[int]) -> tuple[Call, ...]:
    """Let calls, by index, run as a unit with the call before, where that is legal."""
    for index in joining:
        before, call = case.program[index - 1 : index + 1]
        number = index if before.region is None else before.region
        unit = (replace(before, region=number), replace(call, region=number))
        program = (*case.program[: index - 1], *unit, *case.program[index + 1 :])
        case = legal(partial(replace, case, program=program), case.memory()) or case
    return case.program
