"""In a program of several calls: the data of an earlier or a later one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from corpus.meaning import uses
from corpus.payload import Bits, Payload
from oracles.compare import Positions
from oracles.expectation import gathered
from oracles.legal import How, judge
from oracles.wrong import Guess, Wrong

LARGEST: Final = 1 << 22
"""Elements of other calls' tensors that are compared with."""

SETS_OF_RANKS: Final = 64
"""Calls and ranks whose stale contribution is tried."""


def other_call_result(wrong: Wrong) -> Guess | None:
    """What another call gives: the output was overwritten, or is that of the call before."""
    calls = _others(wrong)
    left = LARGEST
    for index in calls:
        call = wrong.case.program[index]
        for name in dict.fromkeys(uses(wrong.case, call, wrong.rank).outputs):
            left -= wrong.case.tensor(name).on(wrong.rank).numel
            if left >= 0 and _holds_result(wrong, index, name):
                if index > wrong.index:
                    return Guess(
                        f"the result did not survive call {index}: {wrong.holding} what that one gives", len(calls)
                    )
                return Guess(f"stale: {wrong.holding} what call {index} left in {name}", len(calls))
    return None


def _others(wrong: Wrong) -> list[int]:
    """The other calls in which this rank takes part, the nearest first, earlier ones first."""
    rank, program = wrong.rank, wrong.case.program
    others = [index for index, call in enumerate(program) if index != wrong.index and rank in wrong.case.ranks(call)]
    return sorted(others, key=lambda index: (abs(index - wrong.index), index))


def _holds_result(wrong: Wrong, index: int, name: str) -> bool:
    """Whether the sample is, element by element, a legal result of another call."""
    if wrong.case.tensor(name).on(wrong.rank).dtype != wrong.buffer.dtype.name:
        return False
    found = wrong.contents.parts(index, wrong.rank, name)
    explained = np.zeros(len(wrong.sample), dtype=bool)
    for part in found:
        offsets = wrong.sample - part.piece.start
        inside = (offsets >= 0) & (offsets < part.piece.length)
        if not inside.any():
            continue
        places, seen = part.places(offsets[inside]), wrong.observed[inside]
        if part.reduction is None or not part.reduction.defined:
            explained[inside] = _same(seen, part.predicted[places])
        else:
            how = judge(part.reduction, gathered(part.tables, places), seen)
            explained[inside] = np.isin(how, (How.EXACT, How.MEMBER, How.BOUND))
    return bool(explained.all())


def _same(left: Bits, right: Bits) -> npt.NDArray[np.bool_]:
    same = left == right
    return np.asarray(same if same.ndim == 1 else same.all(axis=1))


def other_call_data(wrong: Wrong) -> Guess | None:
    """What another call is given, in place of this one's data: all of it, or one rank's."""
    calls = _others(wrong)
    for index in calls:
        data = "what call" if index < wrong.index else "what the later call"
        for name in dict.fromkeys(uses(wrong.case, wrong.case.program[index], wrong.rank).inputs):
            if name in wrong.call.inputs and not _rewritten(wrong, index, name):
                continue
            if _all_from(wrong, _Given(wrong.contents.before(index, name, wrong.rank), 0)):
                return Guess(f"{wrong.holding} {data} {index} is given in {name} on this rank", 2 * len(calls))
    return None


def _rewritten(wrong: Wrong, index: int, name: str) -> bool:
    """Whether a tensor holds something else at another call than at this one."""
    flow = wrong.contents.flow
    return flow.writer(name, wrong.rank, index) != flow.writer(name, wrong.rank, wrong.index)


@dataclass(frozen=True, slots=True)
class _Given:
    """Data, and where in them the output's elements would begin."""

    payload: Payload
    start: int

    def at(self, offsets: Positions) -> Bits | None:
        """The words at these offsets; None where there are not so many."""
        if not len(offsets) or int(offsets.max()) + self.start >= self.payload.numel:
            return None
        return self.payload.table[self.payload.places(offsets + self.start)]


def _all_from(wrong: Wrong, given: _Given) -> bool:
    words = given.at(wrong.sample)
    return words is not None and words.dtype == wrong.observed.dtype and wrong.holds(words)


def stale_contribution(wrong: Wrong) -> Guess | None:
    """A right call over what some rank was given in another one: a staging buffer that was overwritten, or not yet
    written."""
    tried = list(_stale(wrong))[:SETS_OF_RANKS]
    for index, ranks, text in tried:
        if _with_data_of(wrong, index, ranks):
            return Guess(f"{'stale: ' * (index < wrong.index)}{text}{wrong.where}", len(tried))
    return None


def _stale(wrong: Wrong) -> Iterator[tuple[int, frozenset[int], str]]:
    """Which ranks' data may be those of which call, in words."""
    program, members = wrong.case.program, wrong.case.ranks(wrong.call)
    others = sorted(
        (index for index in range(len(program)) if index != wrong.index), key=lambda i: abs(i - wrong.index)
    )
    for index in others:
        both = [rank for rank in members if rank in wrong.case.ranks(program[index])]
        senders = sorted({source.rank for part in wrong.parts for source in part.piece.sources} & set(both))
        if len(senders) > 1:
            yield index, frozenset(senders), f"every rank's data are those of call {index}"
        for rank in senders:
            yield index, frozenset({rank}), f"rank {rank}'s data are those of call {index}"
        for rank in senders if len(senders) > 2 else ():
            yield index, frozenset(senders) - {rank}, f"the data of all ranks but {rank} are those of call {index}"


def _with_data_of(wrong: Wrong, index: int, ranks: frozenset[int]) -> bool:
    """Whether the sample is what the call gives if these ranks' data are those of another call."""
    other = wrong.case.program[index]
    changed = False
    for part, inside, offsets in wrong.by_part():
        sources = gathered(part.tables, part.places(offsets))
        if part.piece.local is not None:
            return False
        for place, source in enumerate(part.piece.sources):
            names, theirs = wrong.call.inputs, uses(wrong.case, other, source.rank).inputs
            role = names.index(source.tensor)
            if source.rank not in ranks or role >= len(theirs):
                continue
            name = theirs[role]
            if wrong.case.tensor(name).on(source.rank).dtype != wrong.buffer.dtype.name:
                return False
            words = _Given(wrong.contents.before(index, name, source.rank), source.start).at(offsets)
            if words is None:
                return False
            changed = True
            sources[place] = words
        seen = wrong.observed[inside]
        if part.reduction is None:
            right = bool(_same(seen, sources[0]).all())
        else:
            legal = (How.EXACT, How.MEMBER, How.BOUND)
            right = part.reduction.defined and bool(np.isin(judge(part.reduction, sources, seen), legal).all())
        if not right:
            return False
    return changed
