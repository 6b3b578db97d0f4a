"""Says what a wrong result is, where one hypothesis explains every wrong element that is looked at.

Hypotheses stand in a list, the plainest first; the first that explains all of a sample wins. They only speak: no
verdict depends on them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from corpus.case import REDUCE_OPS, Call, Case, TensorSpec
from corpus.dtypes import DTYPES, FloatFormat, Kind
from corpus.payload import Bits, Payload, guard
from oracles.compare import Positions
from oracles.contents import Contents
from oracles.expectation import Part, expected, gathered
from oracles.legal import How, Reduction, enumerable, forms, judge, predict
from oracles.rounding import canonical, round_to, values
from oracles.text import counted

if TYPE_CHECKING:
    from oracles.buffers import Buffer

SAMPLE: Final = 4096
"""Wrong elements that a hypothesis must explain."""

REACH: Final = 4096
"""Elements by which a shift is looked for, either way."""

FORMS: Final = 128
"""Orders of operations that are tried in another format; every one of five ranks."""

CANDIDATES: Final = 16
"""Shifts that are tried: in a short dtype many explain one element by chance."""

LARGEST_STORAGE: Final = 1 << 22
"""Elements of base storages, over all ranks, above which reading past the view is not tried."""


@dataclass(frozen=True)
class Wrong:
    """An output of call `index` with wrong elements: `seen` all its words, `places` where they are wrong, in order.

    `complete`: `places` are all the wrong ones.
    """

    contents: Contents
    index: int
    buffer: Buffer
    parts: list[Part]
    seen: Bits
    places: Positions
    complete: bool

    @property
    def case(self) -> Case:
        """The case."""
        return self.contents.case

    @property
    def call(self) -> Call:
        """The call that should have written the output."""
        return self.case.program[self.index]

    def source(self, name: str, rank: int) -> Payload:
        """What a tensor held before the call."""
        return self.contents.before(self.index, name, rank)

    @cached_property
    def sample(self) -> Positions:
        """Some of the wrong places, the first among them, in order."""
        if len(self.places) <= SAMPLE:
            return self.places
        return self.places[np.linspace(0, len(self.places) - 1, SAMPLE).astype(np.int64)]

    @cached_property
    def observed(self) -> Bits:
        """What the sampled places hold."""
        return self.seen[self.sample]

    @property
    def format(self) -> FloatFormat | None:
        """The float format of what is reduced; None where bits are copied, and NaN payloads count."""
        return self.buffer.dtype.format if self.call.reduce_op is not None else None

    def holds(self, words: Bits) -> bool:
        """Whether the sampled places hold these words (any NaN is any NaN in a reduction)."""
        return np.array_equal(canonical(self.observed, self.format), canonical(words, self.format))

    def by_part(self) -> Iterator[tuple[Part, npt.NDArray[np.bool_], Positions]]:
        """Each piece with a mask of the sampled places in it, and their offsets in the piece."""
        for part in self.parts:
            inside = (self.sample >= part.piece.start) & (self.sample < part.piece.start + part.piece.length)
            if inside.any():
                yield part, inside, self.sample[inside] - part.piece.start

    def reduced(self, change: Any) -> bool:
        """Whether all sampled places hold a result of `change(reduction, sources)`, a changed reduction."""
        for part, inside, offsets in self.by_part():
            if part.reduction is None:
                return False
            changed = change(part.reduction, gathered(part.tables, part.places(offsets)))
            if changed is None or not changed[0].defined:
                return False
            how = judge(changed[0], changed[1], self.observed[inside])
            if not np.isin(how, (How.EXACT, How.MEMBER)).all():
                return False
        return True


def explain(wrong: Wrong) -> str:
    """Return a sentence without its full stop, or "" where no hypothesis explains all of the sample."""
    for hypothesis in HYPOTHESES:
        sentence = hypothesis(wrong)
        if sentence:
            return sentence
    return ""


def _where(wrong: Wrong) -> str:
    """Where the wrong elements are, if they are a block: "" for all of the output, " from element 7 on"."""
    first, last, count = int(wrong.places[0]), int(wrong.places[-1]), len(wrong.places)
    if not wrong.complete or (first == 0 and count == len(wrong.seen)):
        return ""
    if last - first + 1 == count:
        return f" from element {first} on" if last == len(wrong.seen) - 1 else f" in elements {first} to {last}"
    return f" in {count} elements"


def own_input(wrong: Wrong) -> str:
    """A reduction that did not happen."""
    if wrong.call.reduce_op is None:
        return ""
    for part, inside, offsets in wrong.by_part():
        mine = [place for place, source in enumerate(part.piece.sources) if source.rank == wrong.buffer.rank]
        if not mine or len(part.tables) == 1:
            return ""
        words = part.tables[mine[0]][part.places(offsets)]
        if not np.array_equal(wrong.observed[inside], words):
            return ""
    return f"no reduction: it holds this rank's own input{_where(wrong)}"


def unwritten(wrong: Wrong) -> str:
    """An output, or its tail, that the call did not write."""
    spec = wrong.buffer.spec
    if spec.payload is None:
        raw = wrong.observed.reshape(len(wrong.observed), -1).view(np.uint8)
        poisoned = bool((raw == 0xA5).all())
        return f"it was not written: it holds what freed memory was filled with{_where(wrong)}" if poisoned else ""
    before = wrong.source(wrong.buffer.name, wrong.buffer.rank)
    if not np.array_equal(wrong.observed, before.table[before.places(wrong.sample)]):
        return ""
    return f"it holds what the output held before the call{_where(wrong)}"


def other_reduction(wrong: Wrong) -> str:
    """Another reduce op than the one asked for."""
    for op in REDUCE_OPS:
        if op not in (wrong.call.reduce_op, "premul_sum") and wrong.reduced(
            lambda reduction, sources, op=op: (replace(reduction, op=op), sources)
        ):
            return f"another reduce op: it holds {op}, not {wrong.call.reduce_op}"
    return ""


def missing(wrong: Wrong) -> str:
    """One rank's contribution left out."""
    for place, source in enumerate(wrong.parts[0].piece.sources):

        def without(
            reduction: Reduction, sources: list[Bits], place: int = place
        ) -> tuple[Reduction, list[Bits]] | None:
            rest = sources[:place] + sources[place + 1 :]
            return (reduction, rest) if rest else None

        if wrong.reduced(without):
            return f"rank {source.rank}'s contribution is missing{_where(wrong)}"
    return ""


def doubled(wrong: Wrong) -> str:
    """One rank's contribution counted twice."""
    for place, source in enumerate(wrong.parts[0].piece.sources):
        if wrong.reduced(lambda reduction, sources, place=place: (reduction, [*sources, sources[place]])):
            return f"rank {source.rank}'s contribution is counted twice{_where(wrong)}"
    return ""


def lower_precision(wrong: Wrong) -> str:
    """A sum computed in a narrower or smaller format."""
    dtype = wrong.buffer.dtype
    if dtype.kind is not Kind.FLOAT or wrong.format is None or wrong.call.reduce_op not in ("sum", "avg", "product"):
        return ""
    fmt = wrong.format
    for name in ("float32", "float16", "bfloat16", "float8_e5m2", "float8_e4m3fn"):
        lower = DTYPES[name]
        if lower.format is None or lower.format == fmt or lower.itemsize > dtype.itemsize:
            continue
        if all(
            part.reduction is not None
            and _went_through(
                replace(part.reduction, dtype=lower),
                fmt,
                gathered(part.tables, part.places(offsets)),
                wrong.observed[inside],
            )
            for part, inside, offsets in wrong.by_part()
        ):
            return f"the {wrong.call.reduce_op} went through {name}"
    return ""


def _went_through(reduction: Reduction, fmt: FloatFormat, sources: list[Bits], seen: Bits) -> bool:
    """Whether what is seen, in format `fmt`, is a result of the reduction in its own, narrower one."""
    lower = reduction.dtype.format
    assert lower is not None
    if not enumerable(reduction, len(sources)):
        return False
    seen = canonical(seen, fmt)
    through = [round_to(values(source, fmt, np.float64), lower) for source in sources]
    left = np.ones(len(seen), dtype=bool)
    for form in islice(forms(reduction, through), FORMS):
        left &= canonical(round_to(values(form, lower, np.float64), fmt), fmt) != seen
    return not left.any()


def other_rank(wrong: Wrong) -> str:
    """A copy that holds another rank's data."""
    if wrong.call.reduce_op is not None:
        return ""
    pairs = []
    for part, inside, offsets in wrong.by_part():
        source = part.piece.sources[0]
        for rank in wrong.case.ranks(wrong.call):
            if rank == source.rank or wrong.case.tensor(source.tensor).on(rank).payload is None:
                continue
            data = wrong.source(source.tensor, rank)
            if data.dtype != wrong.buffer.dtype or int(offsets[-1]) + source.start >= data.numel:
                continue
            if np.array_equal(wrong.observed[inside], data.table[data.places(offsets + source.start)]):
                pairs.append(f"rank {rank}'s data where rank {source.rank}'s belongs")
                break
        else:
            return ""
    return f"it holds {', '.join(pairs)}"


def shifted(wrong: Wrong) -> str:
    """The right elements in the wrong place of the output."""
    total = len(wrong.seen)

    def look_up(positions: Positions, shift: Positions) -> tuple[npt.NDArray[np.bool_], Bits]:
        moved = positions + shift
        inside = (moved >= 0) & (moved < total)
        return inside, expected(wrong.parts, np.where(inside, moved, 0))

    return _shift(wrong, look_up, "it holds elements that belong")


def misread(wrong: Wrong) -> str:
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
                words[mine] = _result(part, rows)
            inside |= mine
        return inside, words

    return _shift(wrong, look_up, "it holds what its sources have")


def _result(part: Part, sources: list[Bits]) -> Bits:
    return sources[0] if part.reduction is None else predict(part.reduction, sources)


LookUp = Callable[[Positions, Positions], tuple[npt.NDArray[np.bool_], Bits]]
"""What would stand at positions of the output if it were shifted, and where that is known."""


def _shift(wrong: Wrong, look_up: LookUp, what: str) -> str:
    """Find the shift under which the sample is explained, from what would explain one element in the middle of it."""
    if len(wrong.sample) < 2:
        return ""
    # From the middle: where the first and the last ones come from may not be known.
    middle = len(wrong.sample) // 2
    anchor = int(wrong.sample[middle])
    reach = np.arange(-REACH, REACH + 1)
    known, words = look_up(np.full_like(reach, anchor), reach)
    wanted = np.broadcast_to(wrong.observed[middle : middle + 1], words.shape)
    shifts = reach[known & _equal(wrong, words, wanted)]
    for shift in sorted(shifts.tolist(), key=abs)[:CANDIDATES]:
        known, words = look_up(wrong.sample, np.array(shift))
        # One element alone would explain nothing, and neither would a minority.
        if shift == 0 or known.sum() < 2 or known.sum() * 2 < len(known):
            continue
        if _equal(wrong, words[known], wrong.observed[known]).all():
            return f"shifted: {what} {counted(abs(shift), 'place')} {'later' if shift > 0 else 'earlier'}"
    return ""


def _equal(wrong: Wrong, left: Bits, right: Bits) -> npt.NDArray[np.bool_]:
    same = canonical(left, wrong.format) == canonical(right, wrong.format)
    return same if same.ndim == 1 else np.asarray(same.all(axis=1))


def base_storage(wrong: Wrong) -> str:
    """A view taken for the dense block of memory that begins at its first element, where it is read or written."""
    specs = [wrong.case.tensor(source.tensor).on(source.rank) for part in wrong.parts for source in part.piece.sources]
    mine = wrong.buffer.spec
    if all(_dense(spec) for spec in (mine, *specs)):
        return ""
    if sum(spec.storage_elements for spec in (mine, *specs)) > LARGEST_STORAGE:
        return ""
    result = np.zeros((mine.numel, *wrong.seen.shape[1:]), dtype=wrong.seen.dtype)
    for part in wrong.parts:
        piece = part.piece
        sources = []
        for source in piece.sources:
            spec = wrong.case.tensor(source.tensor).on(source.rank)
            start = spec.layout.before + source.start
            stored = storage_words(wrong, source.tensor, source.rank)[start : start + piece.length]
            if len(stored) < piece.length:
                return ""
            sources.append(stored)
        result[piece.start : piece.start + piece.length] = _result(part, sources)
    if mine.payload is None or _dense(mine):
        held = result[wrong.sample]
        return "it holds the base storage's elements instead of the view's" if wrong.holds(held) else ""
    from oracles.buffers import flip_lazy, strided

    for both in (True, False):
        # Read and written as if dense, or only read so.
        memory = storage_words(wrong, wrong.buffer.name, wrong.buffer.rank)
        before = mine.layout.before
        if both:
            memory[before : before + mine.numel] = result[: len(memory) - before]
        else:
            strided(memory, mine)[...] = result.reshape(mine.shape + result.shape[1:])
        view = flip_lazy(strided(memory, mine).reshape(mine.numel, *memory.shape[1:]), mine)
        if wrong.holds(view[wrong.sample]):
            return "the base storage's elements instead of the view's: the view is taken for a dense block of memory"
    return ""


def _dense(spec: TensorSpec) -> bool:
    return spec.is_contiguous and not (spec.layout.conj or spec.layout.neg)


def storage_words(wrong: Wrong, name: str, rank: int) -> Bits:
    """The whole base storage of a tensor as it is before the call."""
    from oracles.buffers import flip_lazy, strided

    spec = wrong.case.tensor(name).on(rank)
    words = guard(wrong.case, name, rank).bits()
    if spec.numel:
        logical = flip_lazy(wrong.source(name, rank).bits(), spec)
        strided(words, spec)[...] = logical.reshape(spec.shape + logical.shape[1:])
    return words


HYPOTHESES: Final = (
    # First, because only part of what it explains is an input that was not reduced.
    base_storage,
    own_input,
    unwritten,
    other_reduction,
    missing,
    doubled,
    other_rank,
    lower_precision,
    shifted,
    misread,
)
