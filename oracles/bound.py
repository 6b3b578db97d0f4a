"""The last resort above five ranks: how far any order of operations can be from the exact result.

A sum of n terms in any order, each addition rounding with unit roundoff u, is off by at most ((1+u)^(n-1) - 1) times
the sum of the magnitudes (Higham, "Accuracy and Stability of Numerical Algorithms", 2nd edition, section 4.2), and a
product by ((1+u)^(n-1) - 1) times its own. Such a bound lets real errors pass, so it comes with its detection power.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from corpus.dtypes import FloatFormat
from corpus.payload import Bits, largest
from oracles.rounding import Values, saturates, values

Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Interval:
    """For m elements: the result is legal within `radius` of `centre` + `rest` (two float64 whose sum is exact enough).

    `special`: an infinity or NaN is legal too, because some order overflows. `known`: the result is this infinity or
    NaN and nothing else (elsewhere 0). `vague`: no bound holds, because some order may underflow or overflow.
    `power`: the share of the n contributions whose absence alone would show; NaN where a bound does not apply.
    """

    centre: Values
    rest: Values
    radius: Values
    special: Mask
    known: Values
    vague: Mask
    power: Values

    def holds(self, observed: Bits, fmt: FloatFormat) -> Mask:
        """Which of m observed words are legal."""
        seen = values(observed, fmt, np.float64)
        finite = np.isfinite(seen)
        near = finite & (np.abs((seen - self.centre) - self.rest) <= self.radius)
        bounded = near | (~finite & self.special)
        same = (seen == self.known) | (np.isnan(seen) & np.isnan(self.known)) | (np.isnan(seen) & self.special)
        return np.asarray(np.where(self.known == 0, bounded | self.vague, same | self.vague))


def sum_interval(words: Sequence[Bits], fmt: FloatFormat, scale: float, scaled: bool) -> Interval:
    """Bound the sum of n arrays of m words, times `scale`; `scaled`: the scaling rounds too, before or after."""
    with np.errstate(all="ignore"):
        terms = np.stack([values(source, fmt, np.float64) for source in words])
        count = len(terms)
        finite = np.where(np.isfinite(terms), terms, 0.0)
        # TwoSum (Knuth): `total` + `rest` is the sum, to twice the precision of float64.
        total, rest = np.zeros(finite.shape[1]), np.zeros(finite.shape[1])
        for term in finite:
            new = total + term
            part = new - total
            rest += (total - (new - part)) + (term - part)
            total = new
        magnitudes = np.abs(finite).sum(axis=0)
        unit = 2.0 ** -(fmt.mantissa + 1)
        growth = np.expm1((count - 1 + (3 if scaled else 0)) * np.log1p(unit))
        # The bound is itself computed in float64: the last factor covers the rounding of its dozen operations.
        radius = growth * magnitudes * abs(scale) * (1 + 2.0**-40)
        if scaled:
            radius += count * 2.0 ** (1 - fmt.bias - fmt.mantissa)
        top = float(values(np.array([largest(fmt)], dtype=words[0].dtype), fmt, np.float64)[0])
        special = ~(magnitudes * max(1.0, abs(scale)) * (1 + growth) < top)
        # Without infinity a partial sum that is too large saturates, and the sum can then end anywhere.
        vague = special if saturates(fmt) else np.zeros(len(total), dtype=bool)
        known = np.where(np.isnan(terms).any(axis=0), np.nan, 0.0)
        up, down = (terms == np.inf).any(axis=0), (terms == -np.inf).any(axis=0)
        sign = np.sign(scale) or 1.0
        known = np.where(up & down, np.nan, np.where(up & (known == 0), sign * np.inf, known))
        known = np.where(down & (known == 0), -sign * np.inf, known)
        if scale == 0:
            known = np.where(up | down, np.nan, known)
        power = (np.abs(terms * scale) > radius).mean(axis=0)
        power = np.where((known == 0) & ~special, power, np.nan)
    return Interval(total * scale, rest * scale, radius, special, known, vague & (known == 0), power)


def product_interval(words: Sequence[Bits], fmt: FloatFormat) -> Interval:
    """Bound the product of n arrays of m words."""
    with np.errstate(all="ignore"):
        terms = np.stack([values(source, fmt, np.float64) for source in words])
        count = len(terms)
        logs = np.log2(np.abs(np.where(np.isfinite(terms) & (terms != 0), terms, 1.0)))
        highest, lowest = np.maximum(logs, 0).sum(axis=0), np.minimum(logs, 0).sum(axis=0)
        # One binade of slack on both sides covers the roundings.
        top = (1 << fmt.exponent) - 1 - fmt.bias - 1
        overflows, underflows = highest > top - 1, lowest < 2 - fmt.bias
        zero, infinite = (terms == 0).any(axis=0), np.isinf(terms).any(axis=0)
        sign = np.where((np.signbit(terms).sum(axis=0) % 2) == 1, -1.0, 1.0)
        known = np.where(np.isnan(terms).any(axis=0) | (zero & infinite), np.nan, 0.0)
        known = np.where(infinite & (known == 0), sign * np.inf, known)
        centre = np.prod(np.where(np.isfinite(terms), terms, 1.0), axis=0)
        # Twice: the reference product rounds as often as the one that it judges (this matters in float64 only).
        growth = np.expm1(2 * (count - 1) * np.log1p(2.0 ** -(fmt.mantissa + 1)))
        radius = np.abs(centre) * growth
        vague = np.where(zero, overflows, np.where(infinite, underflows, overflows | underflows)) & ~np.isnan(known)
        shows = np.abs(centre / np.where(terms == 0, 1.0, terms) - centre) > radius
        power = np.where((known == 0) & ~vague, shows.mean(axis=0), np.nan)
    nothing = np.zeros(len(centre), dtype=bool)
    return Interval(centre, np.zeros(len(centre)), radius, nothing, known, vague, power)


def exact_sum(words: Sequence[Bits], fmt: FloatFormat) -> Mask:
    """Where every partial sum of n arrays of m words is exact, whatever the order.

    All addends are multiples of q, the largest power of two that divides them all, so every partial sum is a multiple
    of q of magnitude at most sum |x|. A multiple k q is representable if |k| <= 2**(mantissa + 1), because q is no
    smaller than the format's smallest number; and the sum must not pass the largest one.
    """
    with np.errstate(all="ignore"):
        magnitudes = np.abs(np.stack([values(source, fmt, np.float64) for source in words]))
        fractions, exponents = np.frexp(np.where(np.isfinite(magnitudes), magnitudes, 0.0))
        integers = np.ldexp(fractions, 53).astype(np.int64)
        # integer & -integer is its lowest set bit; frexp's exponent of a power of two 2**k is k + 1.
        lowest = np.frexp((integers & -integers).astype(np.float64))[1].astype(np.int64) - 1 + exponents - 53
        unit = np.where(integers == 0, 1 << 20, lowest).min(axis=0)
        unit = np.where(unit == 1 << 20, 0, unit)
        counts = np.ldexp(magnitudes, -unit).sum(axis=0)
        # Integers add exactly in float64 below 2**53; at 2**53 itself a rounded sum could pass for an exact one.
        limit = min(2.0 ** (fmt.mantissa + 1), 2.0**53 - 1)
        top = float(values(np.array([largest(fmt)], dtype=words[0].dtype), fmt, np.float64)[0])
        return np.asarray((counts <= limit) & (magnitudes.sum(axis=0) <= top))
