"""The right elements in the wrong place: another rank's, another output's, other chunks, or a few places on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np
import numpy.typing as npt

from corpus.meaning import uses
from corpus.payload import Bits
from oracles.compare import Positions
from oracles.expectation import expected
from oracles.hypotheses_memory import computed
from oracles.text import counted, listed
from oracles.wrong import Guess, Wrong

REACH: Final = 4096
"""Elements by which a shift is looked for, either way."""

CANDIDATES: Final = 16
"""Shifts that are tried: in a short dtype many explain one element by chance."""

LARGEST_OUTPUTS: Final = 1 << 22
"""Elements of other outputs that are compared with, one after another."""

MANY_CHUNKS: Final = 3
"""Misplaced chunks from which on the order of all is given."""


def other_rank(wrong: Wrong) -> Guess | None:
    """A copy that holds another rank's data, or chunks in another order."""
    if wrong.call.reduce_op is not None or wrong.call.local:
        return None
    ranks = wrong.case.ranks(wrong.call)
    order = {part.piece.start: part.piece.sources[0].rank for part in wrong.parts}
    pairs = []
    for part, inside, offsets in wrong.by_part():
        source = part.piece.sources[0]
        for rank in ranks:
            if rank == source.rank or source.tensor not in uses(wrong.case, wrong.call, rank).inputs:
                continue
            data = wrong.source(source.tensor, rank)
            if data.dtype != wrong.buffer.dtype or int(offsets[-1]) + source.start >= data.numel:
                continue
            if np.array_equal(wrong.observed[inside], data.table[data.places(offsets + source.start)]):
                pairs.append(f"rank {rank}'s data where rank {source.rank}'s belongs")
                order[part.piece.start] = rank
                break
        else:
            return None
    among = max(len(ranks) - 1, 1) ** len(pairs)
    if len(pairs) >= MANY_CHUNKS:
        return Guess(f"it holds chunks of {_in_order(list(order.values()), ranks)}", among)
    return Guess(f"it holds {', '.join(pairs)}", among)


def _in_order(held: list[int], ranks: tuple[int, ...]) -> str:
    if sorted(held) != sorted(ranks):
        return f"ranks {listed(held, 64)} in this order"
    return f"all ranks, but in the order {listed(held, 64)}"


def other_output(wrong: Wrong) -> Guess | None:
    """What belongs in another output of the call, on this rank or another one."""
    case, call = wrong.case, wrong.call
    ranks = case.ranks(call)
    places = [(rank, name) for rank in (wrong.rank, *ranks) for name in dict.fromkeys(uses(case, call, rank).outputs)]
    places = [place for place in dict.fromkeys(places) if place != (wrong.rank, wrong.buffer.name)]
    size = wrong.buffer.spec.numel
    left = LARGEST_OUTPUTS
    for rank, name in places:
        last = int(wrong.sample[-1])
        left -= case.tensor(name).on(rank).numel
        if left < 0 < size or case.tensor(name).on(rank).numel <= last:
            continue
        found = wrong.contents.parts(wrong.index, rank, name)
        if not found or found[-1].piece.start + found[-1].piece.length <= last:
            continue
        if wrong.holds(expected(found, wrong.sample)):
            whose = f"in {name}" if rank == wrong.rank else f"on rank {rank}" + f", in {name}" * (len(call.outputs) > 1)
            return Guess(f"{wrong.holding} what belongs {whose}", len(places))
    return None


def shifted(wrong: Wrong) -> Guess | None:
    """The right elements in the wrong place of the output."""
    total = len(wrong.seen)

    def look_up(positions: Positions, shift: Positions) -> tuple[npt.NDArray[np.bool_], Bits]:
        moved = positions + shift
        inside = (moved >= 0) & (moved < total)
        return inside, expected(wrong.parts, np.where(inside, moved, 0))

    return _shift(wrong, look_up, "it holds elements that belong")


def misread(wrong: Wrong) -> Guess | None:
    """The wrong elements of the right sources."""

    def look_up(positions: Positions, shift: Positions) -> tuple[npt.NDArray[np.bool_], Bits]:
        inside = np.zeros(len(positions), dtype=bool)
        words = np.zeros((len(positions), *wrong.seen.shape[1:]), dtype=wrong.seen.dtype)
        for part in wrong.parts:
            offsets = positions - part.piece.start
            mine = (offsets >= 0) & (offsets < part.piece.length)
            data = [wrong.source(source.tensor, source.rank) for source in part.piece.sources]
            starts = [source.start for source in part.piece.sources]
            for each, start in zip(data, starts, strict=True):
                mine &= (start + offsets + shift >= 0) & (start + offsets + shift < each.numel)
            if mine.any():
                moved = (offsets + shift)[mine]
                rows = [each.table[each.places(start + moved)] for each, start in zip(data, starts, strict=True)]
                words[mine] = computed(part, rows)
            inside |= mine
        return inside, words

    return _shift(wrong, look_up, "it holds what its sources have")


LookUp = Callable[[Positions, Positions], tuple[npt.NDArray[np.bool_], Bits]]
"""What would stand at positions of the output if it were shifted, and where that is known."""


def _shift(wrong: Wrong, look_up: LookUp, what: str) -> Guess | None:
    """Find the shift under which the sample is explained, from what would explain one element in the middle of it."""
    if len(wrong.places) < 2 or wrong.call.local:
        return None
    # From the middle: where the first and the last ones come from may not be known.
    anchor = int(wrong.places[len(wrong.places) // 2])
    reach = np.arange(-REACH, REACH + 1)
    known, words = look_up(np.full_like(reach, anchor), reach)
    wanted = np.broadcast_to(wrong.seen[anchor : anchor + 1], words.shape)
    shifts = reach[known & wrong.equal(words, wanted)]
    for shift in sorted(shifts.tolist(), key=abs)[:CANDIDATES]:
        known, words = look_up(wrong.sample, np.array(shift))
        # One element alone would explain nothing, and neither would a minority.
        if shift == 0 or known.sum() < 2 or known.sum() * 2 < len(known):
            continue
        if wrong.equal(words[known], wrong.observed[known]).all():
            places = f"{counted(abs(shift), 'place')} {'later' if shift > 0 else 'earlier'}"
            return Guess(f"shifted: {what} {places}", 2 * abs(shift))
    return None
