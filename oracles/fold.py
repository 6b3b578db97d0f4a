"""Names the order of additions that a right sum of floats shows: an observation, and no verdict.

Addition commutes, so an order is a binary tree. A ring reduces each of n contiguous chunks in an order of its own, the
rank order begun at another rank: it shows as a few runs of elements, each explained by one rotation. "Native" rounds
every addition to the dtype, "wide" only the last one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from corpus.case import Case
from corpus.dtypes import FloatFormat, Kind
from corpus.payload import Bits
from oracles.contents import Contents
from oracles.expectation import Part, gathered
from oracles.observation import Observation
from oracles.rounding import Values, canonical, gradual_underflow, round_to, values
from oracles.text import ranks_text

if TYPE_CHECKING:
    from oracles.buffers import Buffer

MOST_RANKS: Final = 8
"""Ranks above which no order is looked for."""

SAMPLE: Final = 2048
"""Elements, evenly spread, from which an order is told."""

TELLING: Final = 12
"""Elements at which the orders give different sums, for each run that they are to tell apart: at one of them, every
other order gives the same sum by chance about as often as not."""

Tree = Any
"""A rank's place in the group, or a pair of trees."""

Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Fold:
    """One way to add up: what it is called, the tree, and whether only the last addition rounds."""

    name: str
    tree: Tree
    wide: bool


def observe(
    contents: Contents, rank: int, buffers: Mapping[str, Buffer], outputs: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """Name the order of additions of each output in which the numeric oracle, whose `outputs` these are, found nothing
    wrong.

    Returns {"folds": [...]}: "call" (index), "output" (name), "fold" ("rank order, native", "ring, native", ...,
    "unnamed") and "runs" (of how many runs of elements with one order it consists; 0: unnamed). Where the data cannot
    tell one order from another there is no entry.
    """
    folds = []
    with gradual_underflow(), np.errstate(all="ignore"):
        for entry in outputs:
            if entry["wrong"] or entry["form"] or not entry["elements"]:
                continue
            index, name = entry["call"], entry["output"]
            if not _asks(contents, index):
                continue
            found = contents.parts(index, rank, name)
            seen = buffers[name].bits(contents.overwritten(name, rank, index))
            named = _named(found[0], seen) if len(found) == 1 else None
            if named is not None:
                folds.append({"call": index, "output": name, "fold": named[0], "runs": named[1]})
    return {"folds": folds}


def _asks(contents: Contents, index: int) -> bool:
    """Whether a call adds up so many floats that there are several orders, and few enough to try them."""
    case = contents.case
    call = case.program[index]
    divides_last = call.reduce_op == "avg" and contents.contract.average.value == ("sum/n",)
    return (call.reduce_op == "sum" or divides_last) and 3 <= len(case.ranks(call)) <= MOST_RANKS


def _named(part: Part, seen: Bits) -> tuple[str, int] | None:
    """The order of additions and its number of runs; None where the data cannot tell."""
    reduction = part.reduction
    if reduction is None or reduction.dtype.kind is not Kind.FLOAT or reduction.dtype.format is None:
        return None
    places = np.unique(np.linspace(0, part.piece.length - 1, min(part.piece.length, SAMPLE)).astype(np.int64))
    sources = gathered(part.tables, part.places(places))
    adding = _Adding(sources, reduction.dtype.format, reduction.ranks if reduction.op == "avg" else 1)
    ranks = len(sources)
    # A quick look at two orders: short outputs, and data whose sums are exact, end here.
    both = [adding.words(_left(order), wide=False) for order in (range(ranks), range(ranks)[::-1])]
    if (both[0] != both[1]).sum() < TELLING:
        return None
    held = _plain(seen[part.piece.start + places], reduction.dtype.format)
    for wide in (False, True) if reduction.dtype.format.bits < 64 else (False,):
        named = _by_one_tree(adding, held, ranks, wide=wide) or _by_runs(adding, held, ranks, wide=wide)
        if named is not None:
            return named
    return "unnamed", 0


def _by_one_tree(adding: _Adding, held: Bits, ranks: int, *, wide: bool) -> tuple[str, int] | None:
    results = [(name, adding.words(tree, wide=wide)) for name, tree in _trees(ranks)]
    explains = [name for name, words in results if np.array_equal(words, held)]
    if not explains:
        return None
    if not wide:
        return f"{explains[0]}, native", 1
    # What rounds once, from a format as wide as this, seldom shows an order.
    telling = np.any([words != results[0][1] for _, words in results], axis=0).sum()
    return f"{explains[0] if telling >= TELLING else 'any order'}, wide", 1


def _by_runs(adding: _Adding, held: Bits, ranks: int, *, wide: bool) -> tuple[str, int] | None:
    """A ring, in one direction or the other."""
    for step in (1, -1):
        orders = [[(first + step * place) % ranks for place in range(ranks)] for first in range(ranks)]
        explained = np.array([adding.words(_left(order), wide=wide) == held for order in orders])
        runs = _runs(explained)
        telling = int((~explained.all(axis=0)).sum())
        if 1 < runs <= ranks and telling >= TELLING * runs:
            return f"ring, {'wide' if wide else 'native'}", runs
    return None


def _runs(explained: Mask) -> int:
    """The fewest runs of elements that each have one row true; 0 where some element has none.

    To go on with a run for as long as some row explains all of it gives the fewest.
    """
    if not explained.any(axis=0).all():
        return 0
    runs, alive = 1, np.ones(len(explained), dtype=bool)
    for column in explained.T:
        if not (alive & column).any():
            runs, alive = runs + 1, np.ones(len(explained), dtype=bool)
        alive &= column
    return runs


class _Adding:
    """Sums of the sources' words in any order: numbers held in a wider format, in which + rounds innocuously."""

    def __init__(self, sources: Sequence[Bits], fmt: FloatFormat, divisor: int) -> None:
        self.fmt = fmt
        self.wide = np.float32 if fmt.bits <= 16 else np.float64
        self.divisor = divisor
        self.leaves = [values(source, fmt, self.wide) for source in sources]

    def words(self, tree: Tree, *, wide: bool) -> Bits:
        """What a tree of additions gives."""
        total = self._sum(tree, wide=wide)
        if self.divisor > 1:
            total = (total if wide else self._narrow(total)) / self.wide(self.divisor)
        return _plain(round_to(total, self.fmt), self.fmt)

    def _sum(self, tree: Tree, *, wide: bool) -> Values:
        if isinstance(tree, int):
            return self.leaves[tree]
        total: Values = self._sum(tree[0], wide=wide) + self._sum(tree[1], wide=wide)
        return total if wide else self._narrow(total)

    def _narrow(self, numbers: Values) -> Values:
        return values(round_to(numbers, self.fmt), self.fmt, self.wide)


def _plain(words: Bits, fmt: FloatFormat) -> Bits:
    """The words with one NaN and one zero: an accumulator may start at zero."""
    words = canonical(words, fmt)
    return np.where(values(words, fmt, np.float64) == 0, words.dtype.type(0), words)


def _trees(ranks: int) -> Iterator[tuple[str, Tree]]:
    """The orders that have a name, the plainest first; of two that are the same tree the first one counts."""
    everyone = list(range(ranks))
    yield "rank order", _left(everyone)
    yield "reverse rank order", _left(everyone[::-1])
    yield "recursive doubling", _doubling(everyone)
    yield "recursive halving", _halving(everyone)
    yield "binomial tree", _binomial(everyone)
    yield "binary tree", _binary(everyone)
    for first in range(1, ranks):
        yield f"rank order from rank {first} of the group on", _left(everyone[first:] + everyone[:first])
    for first in range(ranks - 1):
        yield f"reverse rank order from rank {first} of the group on", _left([(first - p) % ranks for p in everyone])


def _left(order: Sequence[Tree]) -> Tree:
    """((a + b) + c) + d."""
    tree = order[0]
    for other in order[1:]:
        tree = (tree, other)
    return tree


def _doubling(leaves: list[Tree]) -> Tree:
    """Exchange with the neighbour, then at twice the distance: (0 + 1) + (2 + 3). Ranks beyond a power of two hand
    theirs to a neighbour first (Thakur et al., "Optimization of Collective Communication Operations in MPICH", 2005).
    """
    leaves = _folded(leaves)
    while len(leaves) > 1:
        leaves = [(leaves[place], leaves[place + 1]) for place in range(0, len(leaves), 2)]
    return leaves[0]


def _halving(leaves: list[Tree]) -> Tree:
    """Exchange at half the group's distance first, then at half of that: (0 + 2) + (1 + 3)."""
    leaves = _folded(leaves)
    while len(leaves) > 1:
        half = len(leaves) // 2
        leaves = [(leaves[place], leaves[place + half]) for place in range(half)]
    return leaves[0]


def _folded(leaves: list[Tree]) -> list[Tree]:
    """As many leaves as the largest power of two: the first ones are sums of two neighbours."""
    power = 1 << (len(leaves).bit_length() - 1)
    pairs = len(leaves) - power
    return [(leaves[2 * place], leaves[2 * place + 1]) for place in range(pairs)] + leaves[2 * pairs :]


def _binomial(leaves: list[Tree]) -> Tree:
    """Towards rank 0: (0 + 1) + (2 + 3), then what is left over."""
    while len(leaves) > 1:
        leaves = [_left(leaves[place : place + 2]) for place in range(0, len(leaves), 2)]
    return leaves[0]


def _binary(leaves: list[Tree]) -> Tree:
    """Halves of the group, the second the larger: 0 + (1 + 2)."""
    if len(leaves) == 1:
        return leaves[0]
    half = len(leaves) // 2
    return (_binary(leaves[:half]), _binary(leaves[half:]))


def judge(case: Case, observations: Sequence[Observation]) -> Iterator[str]:
    """What was seen, in words, one line a call: "all_reduce sum float32, 3 ranks: ring, native"."""
    for index, call in enumerate(case.program):
        by_fold: dict[str, list[int]] = {}
        for seen in observations:
            for entry in seen.reports.get("fold", {}).get("folds", ()):
                if entry["call"] == index:
                    by_fold.setdefault(entry["fold"], []).append(seen.rank)
        if by_fold:
            dtype = case.tensor(call.outputs[0]).spec.dtype
            what = f"{call.op} {call.reduce_op} {dtype}, {len(case.ranks(call))} ranks"
            if len(by_fold) == 1:
                yield f"{what}: {next(iter(by_fold))}"
            else:
                yield f"{what}: {'; '.join(f'{fold} on {ranks_text(ranks)}' for fold, ranks in by_fold.items())}"
