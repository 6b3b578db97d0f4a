"""Values and lists as a person reads them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from corpus.dtypes import DType, FloatFormat, Kind
from corpus.payload import Bits
from oracles.rounding import round_to, values

EXACT_BELOW: Final = 1e15
"""Whole numbers below are written out: 448 in a format that has only 416, 448 and nothing beside is not "450"."""


def hex_bits(words: Bits, dtype: DType) -> str:
    """One element's bits: "0x3dcccccd"; the two components of a complex number with a comma."""
    digits = 2 * dtype.word
    return ", ".join(f"0x{int(word):0{digits}x}" for word in np.asarray(words).reshape(-1))


def number(words: Bits, dtype: DType) -> str:
    """One element as a number, in the fewest digits that name it: "0.1", "-7", "True", "(1 + 2i)"."""
    parts = np.asarray(words).reshape(-1)
    if dtype.kind is Kind.BOOL:
        return {0: "False", 1: "True"}.get(int(parts[0]), "neither True nor False")
    if dtype.kind is Kind.OPAQUE:
        return "bits"
    if dtype.kind is Kind.SIGNED:
        return str(int(parts.view(f"i{dtype.word}")[0]))
    if dtype.format is None:
        return str(int(parts[0]))
    texts = [_shortest(parts[index : index + 1], dtype.format) for index in range(len(parts))]
    return texts[0] if len(texts) == 1 else f"({texts[0]} + {texts[1]}i)"


def _shortest(word: Bits, fmt: FloatFormat) -> str:
    with np.errstate(all="ignore"):
        value = float(values(word, fmt, np.float64)[0])
        if value != value or value in (float("inf"), float("-inf")):
            return str(value)
        if value == int(value) and abs(value) < EXACT_BELOW:
            return f"{value:.0f}"
        for digits in range(1, 18):
            text = float(f"{value:.{digits}g}")
            if round_to(np.array([text]), fmt)[0] == word[0]:
                return repr(text).removesuffix(".0")
    return repr(value)


def element(words: Bits, dtype: DType) -> str:
    """One element as number and bits: "0.1 (0x3dcccccd)"."""
    return f"{number(words, dtype)} ({hex_bits(words, dtype)})"


def listed(items: Sequence[object], limit: int = 8) -> str:
    """ "0", "0 and 1", "0, 1 and 3", or the first few and how many more."""
    texts = [str(item) for item in items]
    if len(texts) > limit:
        return f"{', '.join(texts[:limit])} and {len(texts) - limit} more"
    if len(texts) < 2:
        return "".join(texts)
    return f"{', '.join(texts[:-1])} and {texts[-1]}"


def ranks_text(ranks: Sequence[int]) -> str:
    """ "rank 1", "ranks 0 and 2"."""
    return f"rank{'s' if len(ranks) != 1 else ''} {listed(ranks)}"


def counted(count: int, what: str) -> str:
    """ "1 element", "4,194,304 elements"."""
    return f"{count:,} {what}{'' if count == 1 else 's'}"
