"""Floating-point bits as numpy numbers, and numbers back as bits: round to nearest, ties to even, for every format.

The arithmetic of the reference is our own: bits are decoded by integer operations, and rounded by integer operations
on the bits of a wider float, so float8 and bfloat16 are computed as exactly as float32.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from corpus.dtypes import DTYPES, FloatFormat
from corpus.payload import Bits, largest

Values = npt.NDArray[Any]
"""Numbers in float32 or float64, each one exact in the format that it stands for."""

_FORMATS: Final = {np.dtype(name): DTYPES[name].format for name in ("float32", "float64")}
_UNSIGNED: Final[dict[int, Any]] = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


def canonical_nan(fmt: FloatFormat) -> int:
    """Bits of the NaN that stands for all NaN of a format: positive and quiet."""
    if fmt.nan is not None:
        return fmt.nan
    return ((1 << fmt.exponent) - 1) << fmt.mantissa | 1 << (fmt.mantissa - 1)


def is_nan(words: Bits, fmt: FloatFormat) -> npt.NDArray[np.bool_]:
    """Which words are NaN, by integer comparison."""
    sign = 1 << (fmt.bits - 1)
    if fmt.nan == sign:
        return np.asarray(words == words.dtype.type(sign))
    magnitude = words & words.dtype.type(sign - 1)
    if fmt.nan is not None:
        return np.asarray(magnitude == words.dtype.type(fmt.nan))
    return np.asarray(magnitude > words.dtype.type(((1 << fmt.exponent) - 1) << fmt.mantissa))


def canonical(words: Bits, fmt: FloatFormat | None) -> Bits:
    """The words with every NaN replaced by `canonical_nan`; the same array where there is none."""
    if fmt is None:
        return words
    nan = is_nan(words, fmt)
    return np.where(nan, words.dtype.type(canonical_nan(fmt)), words) if nan.any() else words


def values(words: Bits, fmt: FloatFormat, wide: type[np.floating[Any]]) -> Values:
    """Decode words exactly into `wide` (float32 for formats of at most 16 bits and float32 itself, or float64)."""
    if fmt.bits <= 16:
        decoded: Values = _table(fmt, np.dtype(wide))[words]
        return decoded
    stored: Values = np.ascontiguousarray(words).view(np.float32 if fmt.bits == 32 else np.float64)
    return stored.astype(wide, copy=False)


@cache
def _table(fmt: FloatFormat, wide: np.dtype[Any]) -> Values:
    codes = np.arange(1 << fmt.bits, dtype=np.int64)
    exponent = (codes >> fmt.mantissa) & ((1 << fmt.exponent) - 1)
    fraction = codes & ((1 << fmt.mantissa) - 1)
    significand = np.where(exponent == 0, fraction, fraction + (1 << fmt.mantissa)).astype(np.float64)
    table = np.ldexp(significand, (np.maximum(exponent, 1) - fmt.bias - fmt.mantissa).astype(np.int32))
    if fmt.infinity:
        table[(exponent == (1 << fmt.exponent) - 1) & (fraction == 0)] = np.inf
    table = np.where(codes >> (fmt.bits - 1) == 1, -table, table)
    table[is_nan(codes.astype(_UNSIGNED[fmt.bits // 8]), fmt)] = np.nan
    with np.errstate(all="ignore"):
        decoded: Values = table.astype(wide)
    decoded.flags.writeable = False
    return decoded


def round_to(numbers: Values, fmt: FloatFormat) -> Bits:
    """Round float32 or float64 numbers to the nearest number of a format, ties to even; NaN becomes `canonical_nan`.

    Overflow gives an infinity where the format has one. Of the others, "fn" saturates at its largest number and "fnuz"
    gives NaN, infinities included, which is what torch's own conversions do.
    """
    source = _FORMATS[numbers.dtype]
    assert source is not None
    word = numbers.dtype.itemsize * 8
    unsigned = _UNSIGNED[word // 8]
    bits = np.ascontiguousarray(numbers).view(unsigned)
    sign_bit = unsigned(1 << (word - 1))
    magnitude = bits & ~sign_bit
    infinity = unsigned(((1 << source.exponent) - 1) << source.mantissa)
    shift = source.mantissa - fmt.mantissa
    if shift:
        # Adding just under half of the last kept bit, and one more where that bit is odd, carries exactly when
        # round-half-even goes up; a carry out of the mantissa raises the exponent, as it should.
        odd = (magnitude >> unsigned(shift)) & unsigned(1)
        code = (magnitude + (unsigned((1 << (shift - 1)) - 1) + odd)) >> unsigned(shift)
    else:
        code = magnitude
    if source.bias != fmt.bias:
        code = code - unsigned((source.bias - fmt.bias) << fmt.mantissa)
        tiny = magnitude < unsigned((source.bias - fmt.bias + 1) << source.mantissa)
        if tiny.any():
            # A subnormal's code is its value in units of the smallest one, and scaling by a power of two is exact.
            scale = numbers.dtype.type(2.0 ** (fmt.bias - 1 + fmt.mantissa))
            units = np.rint(np.where(tiny, np.abs(numbers), 0) * scale)
            code = np.where(tiny, units.astype(unsigned), code)
    top = largest(fmt)
    beyond = unsigned(top + 1 if fmt.infinity else top if saturates(fmt) else canonical_nan(fmt))
    code = np.where(code > unsigned(top), beyond, code)
    sign = (bits >> unsigned(word - 1)) << unsigned(fmt.bits - 1)
    if fmt.nan == 1 << (fmt.bits - 1):
        # The code of minus zero is NaN here: there is one zero, and one NaN.
        sign = np.where(code == 0, unsigned(0), sign)
    code = np.where(magnitude > infinity, unsigned(canonical_nan(fmt)), code | sign)
    rounded: Bits = code.astype(_UNSIGNED[fmt.bits // 8], copy=False)
    return rounded


def saturates(fmt: FloatFormat) -> bool:
    """Whether what is too large for a format becomes its largest number, as it has no infinity, and two NaN."""
    return fmt.nan is not None and fmt.nan < 1 << (fmt.bits - 1)


def flushes() -> bool:
    """Whether this thread's floating-point unit turns subnormal numbers into zeros (FTZ or DAZ), numpy's too."""
    smallest_normal = np.full(1, 2.0**-126, dtype=np.float32)
    subnormal = np.ones(1, dtype=np.uint32).view(np.float32)
    half = np.float32(0.5)
    return not ((smallest_normal * half).view(np.uint32)[0] and (subnormal + subnormal).view(np.uint32)[0])


@contextmanager
def gradual_underflow() -> Iterator[None]:
    """Compute with subnormal numbers inside, whatever mode the library under test has left the thread in."""
    if not flushes():
        yield
        return
    import torch

    torch.set_flush_denormal(False)
    try:
        yield
    finally:
        torch.set_flush_denormal(True)
