"""An output that holds wrong elements, as a hypothesis about it looks at them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from corpus.case import Call, Case
from corpus.dtypes import FloatFormat, Kind
from corpus.payload import Bits, Payload
from oracles.compare import Positions
from oracles.contents import Contents
from oracles.expectation import Part, gathered
from oracles.legal import MAX_TREE, SUMS, How, Reduction, judge, plausible
from oracles.rounding import canonical
from oracles.text import counted

if TYPE_CHECKING:
    from oracles.buffers import Buffer

SAMPLE: Final = 4096
"""Wrong elements that a hypothesis must explain."""

FEW: Final = 16
"""Elements of the sample that are looked at first: most hypotheses fail there."""

Change = Callable[[Reduction, list[Bits]], tuple[Reduction, list[Bits]] | None]
"""A reduction and its sources' words, changed as a hypothesis says; None: it says nothing of them."""


Legal = Callable[[Reduction, list[Bits], Bits], npt.NDArray[np.bool_]]
"""Which observed elements are legal."""


def judged(reduction: Reduction, sources: list[Bits], seen: Bits) -> npt.NDArray[np.bool_]:
    """Which elements are results of a reduction, or as near to one as can be said of so many ranks."""
    near = plausible(reduction, sources, seen)
    if not near.all():
        return near
    return np.isin(judge(reduction, sources, seen), (How.EXACT, How.MEMBER, How.BOUND))


@dataclass(frozen=True, slots=True)
class Guess:
    """What a hypothesis says: a sentence without its full stop, and among how many alternatives it was chosen."""

    text: str
    among: int = 1


@dataclass(frozen=True)
class Wrong:
    """An output of call `index` with wrong elements: `seen` all its words, `places` where they are wrong, in order.

    `complete`: `places` are all the wrong ones. `block`: elements [start, stop) that a hypothesis must explain too, the
    right ones among them; None: only the wrong ones.
    """

    contents: Contents
    index: int
    buffer: Buffer
    parts: list[Part]
    seen: Bits
    places: Positions
    complete: bool
    block: tuple[int, int] | None = None

    @property
    def case(self) -> Case:
        """The case."""
        return self.contents.case

    @property
    def call(self) -> Call:
        """The call that should have written the output."""
        return self.case.program[self.index]

    @property
    def rank(self) -> int:
        """The rank (global) that holds the output."""
        return self.buffer.rank

    def source(self, name: str, rank: int) -> Payload:
        """What a tensor held before the call."""
        return self.contents.before(self.index, name, rank)

    def blocks(self) -> Iterator[Wrong]:
        """The same with what there may be to explain: all elements, those from the first wrong one on, those from the
        first wrong one to the last, only the wrong ones."""
        first, last, total = int(self.places[0]), int(self.places[-1]), len(self.seen)
        blocks = [(0, total)]
        blocks += [(first, total), (first, last + 1)] if self.complete else []
        for block in dict.fromkeys(blocks):
            yield replace(self, block=block)
        if not self.complete or len(self.places) < last + 1 - first:
            yield self

    @cached_property
    def sample(self) -> Positions:
        """Some of the places to explain, the first wrong one among them, in order."""
        if self.block is None:
            return _spread(self.places, SAMPLE)
        start, stop = self.block
        if len(self.places) == stop - start:
            return _spread(self.places, SAMPLE)
        count = min(stop - start, SAMPLE // 2)
        others = start + np.linspace(0, stop - start - 1, count).astype(np.int64)
        return np.union1d(_spread(self.places, SAMPLE // 2), others)

    @cached_property
    def observed(self) -> Bits:
        """What the sampled places hold."""
        return self.seen[self.sample]

    @property
    def format(self) -> FloatFormat | None:
        """The float format of what is reduced; None where bits are copied, and NaN payloads count."""
        return self.buffer.dtype.format if self.call.reduce_op is not None else None

    @property
    def evidence(self) -> float:
        """Bits by which a hypothesis that explains the sample has narrowed down what it could hold.

        An element counts as many as its dtype has, less those that tell the legal results of its reduction apart: one
        of several trees, or, where only a bound judges, the last places.
        """
        dtype = self.buffer.dtype
        bits = 1.0 if dtype.kind is Kind.BOOL else 8.0 * dtype.itemsize
        ranks = max(len(part.tables) for part in self.parts)
        if self.format is not None and self.call.reduce_op in SUMS | {"product"} and ranks > 2:
            trees = math.prod(range(1, 2 * ranks - 2, 2))
            within_bound = dtype.components * (self.format.mantissa + 1 - math.log2(ranks))
            bits = bits - dtype.components * math.log2(trees) if ranks <= MAX_TREE else within_bound
        return min(len(self.places), len(self.sample)) * max(bits, 0.0)

    def holds(self, words: Bits) -> bool:
        """Whether the sampled places hold these words (any NaN is any NaN in a reduction)."""
        return bool(self.equal(self.observed, words).all())

    def equal(self, left: Bits, right: Bits) -> npt.NDArray[np.bool_]:
        """Which elements are the same (any NaN is any NaN in a reduction)."""
        same = canonical(left, self.format) == canonical(right, self.format)
        return same if same.ndim == 1 else np.asarray(same.all(axis=1))

    def by_part(self) -> Iterator[tuple[Part, npt.NDArray[np.bool_], Positions]]:
        """Each piece with a mask of the sampled places in it, and their offsets in the piece."""
        for part in self.parts:
            inside = (self.sample >= part.piece.start) & (self.sample < part.piece.start + part.piece.length)
            if inside.any():
                yield part, inside, self.sample[inside] - part.piece.start

    def reduced(self, change: Change) -> bool:
        """Whether all sampled places hold a result of `change(reduction, sources)`, a changed reduction."""
        return self._few._reduced(change, judged) and (len(self.sample) <= FEW or self._reduced(change, judged))

    def near(self, change: Change) -> bool:
        """Whether they hold one but for a few roundings, which the change may have put elsewhere."""
        return self._few._reduced(change, plausible) and self._reduced(change, plausible)

    @cached_property
    def _few(self) -> Wrong:
        few = np.union1d(_spread(self.places, FEW // 2), _spread(self.sample, FEW // 2))
        return replace(self, places=few, block=None)

    def _reduced(self, change: Change, legal: Legal) -> bool:
        for reduction, sources, seen in self._reductions:
            changed = None if reduction is None else change(reduction, sources)
            if changed is None or not changed[0].defined or not legal(*changed, seen).all():
                return False
        return True

    @cached_property
    def _reductions(self) -> list[tuple[Reduction | None, list[Bits], Bits]]:
        """Of each piece in the sample: its reduction, its sources' words, and what is seen."""
        return [
            (part.reduction, gathered(part.tables, part.places(offsets)), self.observed[inside])
            for part, inside, offsets in self.by_part()
        ]

    @cached_property
    def which(self) -> str:
        """Which elements are explained, if not all: "the last 5 elements", "elements 3 to 7", "12 elements"."""
        total = len(self.seen)
        if self.block is None:
            return counted(len(self.places), "element") if self.complete else ""
        first, last = self.block[0], self.block[1] - 1
        if last == total - 1:
            return "" if first == 0 else f"the last {_counted(total - first)}"
        if first == 0:
            return f"the first {_counted(last + 1)}"
        return f"element {first}" if first == last else f"elements {first} to {last}"

    @property
    def one(self) -> bool:
        """Whether that is a single element."""
        return len(self.places) == 1 if self.block is None else self.block[1] - self.block[0] == 1

    @property
    def where(self) -> str:
        """The same behind a statement: " in the last 5 elements", or ""."""
        return f" in {self.which}" if self.which else ""

    @property
    def holding(self) -> str:
        """The same as a subject: "it holds", "the last 5 elements hold"."""
        if not self.which:
            return "it holds"
        return f"{self.which} hold{'s' * self.one}"

    def left_alone(self, what: str, holding: str) -> str:
        """A sentence of what did not happen: "the last 5 elements were not written: they hold ..."."""
        if not self.which:
            return f"it was not {what}: it holds {holding}"
        verb, they = ("was", "it holds") if self.one else ("were", "they hold")
        return f"{self.which} {verb} not {what}: {they} {holding}"


def _counted(count: int) -> str:
    return "element" if count == 1 else counted(count, "element")


def _spread(places: Positions, count: int) -> Positions:
    """At most `count` of the places, evenly spread, the first and the last among them."""
    if len(places) <= count:
        return places
    return places[np.linspace(0, len(places) - 1, count).astype(np.int64)]
