"""How far wrong elements are from what is expected, as a histogram in words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import islice
from typing import Final

import numpy as np
import numpy.typing as npt

from corpus.dtypes import FloatFormat, Kind
from corpus.payload import Bits
from oracles.expectation import gathered
from oracles.legal import enumerable, forms
from oracles.rounding import is_nan
from oracles.wrong import Wrong

FORMS: Final = 128
"""Legal results to the nearest of which a difference is measured."""

SHOWN: Final = 4
"""Differences of integers that are shown."""

_BUCKETS: Final = ((1, "1"), (3, "2-3"), (15, "4-15"), (255, "16-255"), (65_535, "256-65,535"))


def differences(wrong: Wrong) -> str:
    """The histogram of the sampled elements' differences: of floats in ulp, each component for itself; of integers and
    bools by value; of packed formats by how many bits differ."""
    dtype = wrong.buffer.dtype
    if dtype.format is not None:
        return f"differences in ulp: {_listed(_by_ulp(wrong, dtype.format))}"
    seen, legal = wrong.observed.reshape(-1), next(_legal(wrong)).reshape(-1)
    if dtype.kind is Kind.BOOL:
        names = {(0, 1): "False for True", (1, 0): "True for False"}
        pairs = Counter(names.get((int(a), int(b)), "neither") for a, b in zip(seen, legal, strict=True))
        return _listed(dict(pairs.most_common()))
    if dtype.kind is Kind.OPAQUE:
        bits = np.unpackbits((seen ^ legal).view(np.uint8).reshape(len(seen), -1), axis=1).sum(axis=1)
        return f"bits that differ: {_listed(dict(sorted(Counter(bits.tolist()).items())))}"
    distance = (seen - legal).view(f"i{dtype.word}")
    common = Counter(distance.tolist()).most_common()
    shown = {f"{value:+,}": count for value, count in common[:SHOWN]}
    rest = sum(count for _, count in common[SHOWN:])
    return f"differences: {_listed({**shown, 'others': rest} if rest else shown)}"


def _listed(counts: dict[str, int] | dict[int, int]) -> str:
    return ", ".join(f"{what}: {count:,}" for what, count in counts.items())


def _legal(wrong: Wrong) -> Iterator[Bits]:
    """Legal words at the sampled places, one array a form, where they can be enumerated; the prediction at least."""
    pieces = list(wrong.by_part())
    columns = []
    for part, _, offsets in pieces:
        sources = gathered(part.tables, part.places(offsets))
        if part.reduction is not None and enumerable(part.reduction, len(sources)):
            columns.append(forms(part.reduction, sources))
        else:
            columns.append(iter([part.predicted[part.places(offsets)]]))
    for rows in islice(zip(*columns, strict=False), FORMS):
        words = np.empty_like(wrong.observed)
        for (_, inside, _), row in zip(pieces, rows, strict=True):
            words[inside] = row
        yield words


def _by_ulp(wrong: Wrong, fmt: FloatFormat) -> dict[str, int]:
    """Counts by distance, the nearest first; then NaN where the other is none, and the other way round."""
    seen = wrong.observed.reshape(-1)
    nearest = np.full(len(seen), np.iinfo(np.uint64).max, dtype=np.uint64)
    expects_nan = np.ones(len(seen), dtype=bool)
    for legal in _legal(wrong):
        words = legal.reshape(-1)
        nearest = np.minimum(nearest, _distance(seen, words, fmt))
        expects_nan &= is_nan(words, fmt)
    nan = is_nan(seen, fmt)
    counts: dict[str, int] = {}
    left = ~nan & ~expects_nan & (nearest > 0)
    counts["the sign of zero"] = int((left & (nearest == 1) & (seen << seen.dtype.type(1) == 0)).sum())
    for top, text in _BUCKETS:
        here = left & (nearest <= np.uint64(top))
        counts[text] = int(here.sum())
        left &= ~here
    counts["more"] = int(left.sum())
    counts["NaN"] = int((nan & ~expects_nan).sum())
    counts["no NaN where one belongs"] = int((~nan & expects_nan).sum())
    counts["another NaN"] = int((nan & expects_nan & (nearest > 0)).sum()) if wrong.format is None else 0
    return {text: count for text, count in counts.items() if count}


def _distance(left: Bits, right: Bits, fmt: FloatFormat) -> npt.NDArray[np.uint64]:
    """Numbers of the format from one to the other."""
    first, second = _ordered(left, fmt), _ordered(right, fmt)
    return np.asarray(np.maximum(first, second) - np.minimum(first, second))


def _ordered(words: Bits, fmt: FloatFormat) -> npt.NDArray[np.uint64]:
    """Unsigned integers in the order of the numbers: those with a sign bit run backwards, below the others."""
    sign = np.uint64(1 << (fmt.bits - 1))
    wide = words.astype(np.uint64)
    return np.asarray(np.where(wide & sign, sign - (wide & ~sign), sign + wide))
