"""A wrong result that went through another format: narrower, taken for another dtype, or with its bytes swapped."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import reduce
from itertools import islice
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from corpus.dtypes import DTYPES, DType, FloatFormat, Kind
from corpus.payload import Bits, largest, word_type
from oracles.compare import Positions
from oracles.expectation import Part, expected, gathered
from oracles.legal import Reduction, enumerable, forms
from oracles.rounding import canonical, round_to, values
from oracles.wrong import FEW, Guess, Wrong

FORMS: Final = 128
"""Orders of operations that are tried in another format; every one of five ranks."""

LOWER: Final = ("float32", "float16", "bfloat16", "float8_e5m2", "float8_e4m3fn", "float8_e5m2fnuz", "float8_e4m3fnuz")
"""Formats through which data may have gone, the widest first."""

Went = Callable[[Part, list[Bits], Bits], bool]
"""Whether what is seen is what a piece would hold of these sources, computed in a certain way."""


def lower_precision(wrong: Wrong) -> Guess | None:
    """Data, or a sum, that went through a narrower or smaller format; what is too large for it saturates or not."""
    dtype, fmt = wrong.buffer.dtype, wrong.buffer.dtype.format
    if dtype.kind is not Kind.FLOAT or fmt is None or wrong.call.reduce_op not in (None, "sum", "avg", "product"):
        return None
    what = f"the {wrong.call.reduce_op}" if wrong.call.reduce_op else "the data"
    for name in LOWER:
        lower = DTYPES[name]
        if lower.format is None or lower.itemsize > dtype.itemsize:
            continue
        for saturates in (False, True):
            if lower.format == fmt and not (saturates and fmt.infinity and wrong.call.reduce_op):
                continue

            def went(
                part: Part, sources: list[Bits], seen: Bits, lower: DType = lower, saturates: bool = saturates
            ) -> bool:
                return _went_through(part.reduction, lower, fmt, sources, seen, saturates)

            if _explains(wrong, went):
                if lower.format == fmt:
                    return Guess(f"{what} saturates at the largest number instead of becoming infinite")
                text = f"{what} went through {name}"
                return Guess(f"{text}, and saturated at its largest number" if saturates else text, 2 * len(LOWER))
    return None


def _explains(wrong: Wrong, went: Went) -> bool:
    """Whether all of the sample is explained, a few of it first."""

    def holds(few: slice) -> bool:
        for part, inside, offsets in wrong.by_part():
            chosen: Positions = offsets[few]
            if not went(part, gathered(part.tables, part.places(chosen)), wrong.observed[inside][few]):
                return False
        return True

    return holds(slice(FEW)) and holds(slice(None))


def _went_through(
    reduction: Reduction | None, lower: DType, fmt: FloatFormat, sources: list[Bits], seen: Bits, saturates: bool
) -> bool:
    """Whether what is seen, in format `fmt`, is a copy or a result of the reduction that went through a lower one."""
    assert lower.format is not None
    narrow = [round_to(values(source, fmt, np.float64), lower.format) for source in sources]
    through = [_clamped(words, lower, saturates and lower.format != fmt) for words in narrow]
    seen = canonical(seen, fmt)
    if reduction is None:
        results: Iterator[Bits] = iter(through)
    elif enumerable(reduction, len(sources)):
        results = islice(forms(replace(reduction, dtype=lower), through), FORMS)
    else:
        return False
    left = np.ones(len(seen), dtype=bool)
    for result in results:
        words = _clamped(result, lower, saturates)
        left &= canonical(round_to(values(words, lower.format, np.float64), fmt), fmt) != seen
        if not left.any():
            return True
    return False


def _clamped(words: Bits, dtype: DType, saturates: bool) -> Bits:
    """The words with infinities replaced by the largest number, if what is too large saturates."""
    fmt = dtype.format
    assert fmt is not None
    if not (saturates and fmt.infinity):
        return words
    sign = words.dtype.type(1 << (fmt.bits - 1))
    infinite = (words & ~sign) == words.dtype.type(largest(fmt) + 1)
    return np.where(infinite, words - words.dtype.type(1), words)


def other_dtype(wrong: Wrong) -> Guess | None:
    """A reduction of the bits as if they were of another dtype of the same size."""
    dtype = wrong.buffer.dtype
    if wrong.call.reduce_op is None:
        return None
    others = [
        other
        for other in DTYPES.values()
        if other.word == dtype.word
        and other.components == 1
        and other.kind not in (Kind.BOOL, Kind.OPAQUE)
        # The parts of a complex number are added like floats.
        and (other.kind, other.format) != (dtype.kind, dtype.format)
        and not (dtype.components == 2 and other.format == dtype.format)
    ]
    for other in others:
        if wrong.reduced(
            lambda reduction, sources, other=other: (replace(reduction, dtype=other), sources)  # type: ignore[misc]
        ):
            taken = f"the bits of {dtype.name} are taken for {other.name}"
            return Guess(f"{taken}: the {wrong.call.reduce_op} is computed on them as such", len(others))
    return None


def byte_order(wrong: Wrong) -> Guess | None:
    """Bytes in the opposite order: of the result, of what was reduced, or of both."""
    if wrong.buffer.dtype.word == 1:
        return None
    if wrong.call.reduce_op is None:
        swapped = wrong.holds(expected(wrong.parts, wrong.sample).byteswap())
        return Guess(f"{wrong.holding} the right elements with their bytes in reverse order") if swapped else None
    turned = replace(wrong, seen=wrong.seen.byteswap())
    if turned.reduced(lambda reduction, sources: (reduction, sources)):
        return Guess(f"{wrong.holding} the right elements with their bytes in reverse order", 3)
    for which in (wrong, turned):
        if which.reduced(lambda reduction, sources: (reduction, [source.byteswap() for source in sources])):
            return Guess(f"the {wrong.call.reduce_op} reads its inputs' bytes in reverse order", 3)
    return None


def integers(wrong: Wrong) -> Guess | None:
    """Integers that saturate instead of wrapping, or that went through a narrower integer or a float."""
    dtype, op = wrong.buffer.dtype, wrong.call.reduce_op
    if dtype.kind not in (Kind.SIGNED, Kind.UNSIGNED) or op not in ("sum", "product"):
        return None
    number = np.dtype(f"{'i' if dtype.kind is Kind.SIGNED else 'u'}{dtype.itemsize}")
    limits = np.iinfo(number)
    join = np.add if op == "sum" else np.multiply

    def exactly(rows: list[npt.NDArray[Any]]) -> npt.NDArray[Any]:
        return np.asarray(reduce(join, [row.astype(object) for row in rows]))

    def saturating(rows: list[npt.NDArray[Any]]) -> npt.NDArray[Any]:
        return np.asarray(np.clip(exactly(rows), limits.min, limits.max).astype(number))

    def narrow(rows: list[npt.NDArray[Any]], size: int) -> npt.NDArray[Any]:
        low = np.dtype(f"{number.kind}{size}")
        return np.asarray(reduce(join, [row.astype(low) for row in rows])).astype(number)

    def floating(rows: list[npt.NDArray[Any]], kind: type[np.floating[Any]]) -> npt.NDArray[Any]:
        # What is too large becomes what the processor makes of it.
        return np.asarray(reduce(join, [row.astype(kind) for row in rows])).astype(number)

    ways: list[tuple[str, Callable[[list[npt.NDArray[Any]]], npt.NDArray[Any]]]] = [
        (f"the {op} saturates instead of wrapping", saturating)
    ]
    for size in (4, 2, 1):
        if size < dtype.itemsize:
            name = f"{'' if dtype.kind is Kind.SIGNED else 'u'}int{8 * size}"
            ways.append((f"the {op} went through {name}", lambda rows, size=size: narrow(rows, size)))  # type: ignore[misc]
    for kind in (np.float64, np.float32, np.float16):
        ways.append((f"the {op} went through {kind.__name__}", lambda rows, kind=kind: floating(rows, kind)))  # type: ignore[misc]
    for text, way in ways:

        def went(
            part: Part, sources: list[Bits], seen: Bits, way: Callable[[list[npt.NDArray[Any]]], npt.NDArray[Any]] = way
        ) -> bool:
            rows = [np.ascontiguousarray(source).view(number) for source in sources]
            return np.array_equal(way(rows).view(word_type(dtype)), seen)

        if _explains(wrong, went):
            return Guess(f"{text}", len(ways))
    return None
