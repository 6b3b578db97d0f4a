"""The set of legal results of one reduction, element by element. Bits in, bits out.

Floating-point addition commutes and does not associate, so what n ranks may hold is one value a binary tree: 1 for two
ranks, 3 for three, 15 for four, 105 for five ((2n - 3)!!). An inner node rounds to the dtype or, where the contract
allows it, stays wide. `forms` enumerates those values, the most likely one first; `judge` asks whether what was
observed is among them. Above five ranks the elements with at most five contributions, and those whose partial sums are
all exact, keep membership; `oracles.bound` is what is left for the others.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from functools import reduce
from itertools import islice
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from corpus.contract import Contract
from corpus.dtypes import DType, FloatFormat, Kind
from corpus.payload import Bits, word_type
from oracles import bound
from oracles.rounding import Values, canonical, canonical_nan, is_nan, round_to, values

MAX_TREE: Final = 5
"""Ranks up to which every tree is enumerated."""

CHUNK: Final = 2048
"""Elements judged at once: the partial results of all trees stay in a core's cache."""

SUMS: Final = frozenset({"sum", "avg", "premul_sum"})
BITWISE: Final = frozenset({"band", "bor", "bxor"})
EXTREMA: Final = frozenset({"min", "max"})


class How(IntEnum):
    """How an element was judged; the order is that of severity for the two components of a complex number."""

    WRONG = 0
    """No legal result."""
    EXACT = 1
    """Equal to the one legal result."""
    MEMBER = 2
    """One of several legal results."""
    BOUND = 3
    """Near enough to the exact result: the weakest verdict that is one."""
    UNSPECIFIED = 4
    """The contract does not say what the result is."""
    PREDICTED = 5
    """Equal to the prediction (given by the comparison before this one)."""


@dataclass(frozen=True, slots=True)
class Reduction:
    """One reduction over `ranks` ranks (the divisor of AVG) of elements of `dtype`, as a contract defines it."""

    op: str
    dtype: DType
    ranks: int
    contract: Contract = field(compare=False, hash=False)
    factor: float = 1.0

    @property
    def defined(self) -> bool:
        """Whether the contract and this reference say what the result is."""
        kind = self.dtype.kind
        if kind is Kind.OPAQUE:
            return False
        if kind is Kind.BOOL:
            if self.op in ("sum", "product"):
                return self.contract.bool_reduction.value
            return self.op in BITWISE | EXTREMA
        if kind is Kind.COMPLEX:
            return self.op in SUMS
        return kind is Kind.FLOAT or self.op != "premul_sum"


def predict(reduction: Reduction, sources: Sequence[Bits]) -> Bits:
    """One legal result, from each rank's words in group order (arrays of one shape): a left fold, in the first form.

    Where the reduction is not `defined`, the first rank's words: something that all ranks can compare with.
    """
    if not reduction.defined:
        return sources[0]
    flat = [source.reshape(-1) for source in sources]
    with np.errstate(all="ignore"):
        return next(_forms(reduction, flat)).reshape(sources[0].shape)


def forms(reduction: Reduction, sources: Sequence[Bits]) -> Iterator[Bits]:
    """Every legal result, one array a form, the prediction first; NaN is canonical. At most five ranks for floats."""
    flat = [source.reshape(-1) for source in sources]
    produced = _forms(reduction, flat)
    while True:
        # A generator must not hold errstate open across a yield: it would leak into the caller.
        with np.errstate(all="ignore"):
            form = next(produced, None)
        if form is None:
            return
        yield form.reshape(sources[0].shape)


def enumerable(reduction: Reduction, ranks: int) -> bool:
    """Whether `forms` can enumerate the results of this many ranks."""
    floats = reduction.dtype.format is not None and reduction.op in SUMS | {"product"}
    return reduction.defined and (not floats or ranks <= MAX_TREE)


def judge(reduction: Reduction, sources: Sequence[Bits], observed: Bits) -> npt.NDArray[np.uint8]:
    """Say of each of m observed elements how it is legal, or that it is wrong: an array of `How`."""
    if not reduction.defined:
        return np.full(len(observed), How.UNSPECIFIED, dtype=np.uint8)
    components = reduction.dtype.components
    flat, seen = [source.reshape(-1) for source in sources], observed.reshape(-1)
    how = np.empty(len(seen), dtype=np.uint8)
    with np.errstate(all="ignore"):
        for start in range(0, len(seen), CHUNK):
            stop = start + CHUNK
            how[start:stop] = _judge(reduction, [source[start:stop] for source in flat], seen[start:stop])
    if components == 2:
        pairs = how.reshape(-1, 2)
        how = np.where((pairs == How.WRONG).any(axis=1), np.uint8(How.WRONG), pairs.max(axis=1))
    return how


def plausible(reduction: Reduction, sources: Sequence[Bits], observed: Bits) -> npt.NDArray[np.bool_]:
    """Which of m observed elements are near enough to be legal: a quick test that precedes `judge`.

    Of a sum or product of floats it is the bound; of others it says yes.
    """
    fmt = reduction.dtype.format
    if fmt is None or reduction.op not in SUMS | {"product"} or not reduction.defined:
        return np.ones(len(observed), dtype=bool)
    with np.errstate(all="ignore"):
        interval = _interval(reduction, [source.reshape(-1) for source in sources])
        near = interval.holds(canonical(observed.reshape(-1), fmt), fmt)
    return np.asarray(near.reshape(len(observed), -1).all(axis=1))


def legal_words(reduction: Reduction, sources: Sequence[Bits], limit: int = 64) -> tuple[list[Bits], str]:
    """The legal words of one element (arrays of one element), at most `limit`, and what they do not say, in words."""
    if not reduction.defined:
        return [], "unspecified by the contract"
    if not enumerable(reduction, len(sources)):
        smaller = list(_smaller(reduction, [source.reshape(-1) for source in sources]))
        if reduction.dtype.components == 2 or not smaller or len(smaller[0][0]) == 0:
            return [predict(reduction, sources)], "or near it: judged by a bound"
        _, sources, reduction, _ = next(part for part in smaller if len(part[0]))
    found: dict[bytes, Bits] = {}
    for form in islice(forms(reduction, sources), 4096):
        found.setdefault(form.tobytes(), form)
        if len(found) > limit:
            return list(found.values()), "and more"
    return list(found.values()), ""


def power(reduction: Reduction, sources: Sequence[Bits]) -> Values:
    """Of each of m elements judged by a bound: the share of single contributions whose absence would show."""
    flat = [source.reshape(-1) for source in sources]
    result = _interval(reduction, flat).power
    return result.reshape(-1, 2).min(axis=1) if reduction.dtype.components == 2 else result


def _judge(reduction: Reduction, sources: list[Bits], seen: Bits) -> npt.NDArray[np.uint8]:
    how = np.full(len(seen), How.WRONG, dtype=np.uint8)
    if enumerable(reduction, len(sources)):
        single = reduction.dtype.format is None or reduction.op in BITWISE
        how[_member(reduction, sources, seen)] = How.EXACT if single else How.MEMBER
        if reduction.op in EXTREMA and reduction.contract.nan_extremum.value == "unspecified":
            how[(how != How.WRONG) & _any_nan(reduction.dtype.format, sources)] = How.UNSPECIFIED
        return how
    rest = np.ones(len(seen), dtype=bool)
    for where, fewer, simpler, verdict in _smaller(reduction, sources):
        how[where[_member(simpler, fewer, seen[where])]] = verdict
        rest[where] = False
    left = np.flatnonzero(rest)
    if len(left):
        assert reduction.dtype.format is not None
        interval = _interval(reduction, [source[left] for source in sources])
        how[left[interval.holds(seen[left], reduction.dtype.format)]] = How.BOUND
        how[left[interval.vague]] = How.UNSPECIFIED
    return how


def _member(reduction: Reduction, sources: Sequence[Bits], seen: Bits) -> npt.NDArray[np.bool_]:
    """Which observed words are among the forms."""
    fmt = reduction.dtype.format
    seen = canonical(seen, fmt)
    zero_seeded = fmt is not None and reduction.op in SUMS
    minus_zero = word_type(reduction.dtype)(1 << (8 * reduction.dtype.word - 1))
    left = np.arange(len(seen))
    member = np.zeros(len(seen), dtype=bool)
    for form in _forms(reduction, list(sources)):
        here = form[left]
        hit = here == seen[left]
        if zero_seeded:
            # An accumulator that starts at +0 turns a sum of -0 into +0.
            hit |= (here == minus_zero) & (seen[left] == 0)
        member[left[hit]] = True
        left = left[~hit]
        if not len(left):
            break
    return member


def _any_nan(fmt: FloatFormat | None, sources: Sequence[Bits]) -> npt.NDArray[np.bool_]:
    found = np.zeros(len(sources[0]), dtype=bool)
    if fmt is not None:
        for source in sources:
            found |= is_nan(source, fmt)
    return found


def _forms(reduction: Reduction, sources: list[Bits]) -> Iterator[Bits]:
    kind, op = reduction.dtype.kind, reduction.op
    if op in BITWISE or kind is Kind.BOOL:
        function = _BITS[op]
        result = sources[0]
        for source in sources[1:]:
            result = function(result, source)
        yield result
    elif reduction.dtype.format is None:
        yield from _integer_forms(reduction, sources)
    elif op in EXTREMA:
        yield from _extremum_forms(reduction, sources, reduction.dtype.format)
    else:
        yield from _tree_forms(reduction, sources, reduction.dtype.format)


_BITS: Final = {
    "band": np.bitwise_and,
    "bor": np.bitwise_or,
    "bxor": np.bitwise_xor,
    # On a bool of 0 or 1.
    "sum": np.bitwise_or,
    "max": np.bitwise_or,
    "product": np.bitwise_and,
    "min": np.bitwise_and,
}


def _integer_forms(reduction: Reduction, sources: list[Bits]) -> Iterator[Bits]:
    """SUM and PRODUCT wrap modulo 2**bits. AVG divides the wrapped sum, the whole one where sums may be wide, or each
    input, as the contract says; towards zero or towards minus infinity."""
    word = word_type(reduction.dtype)
    number = np.dtype(f"i{reduction.dtype.word}") if reduction.dtype.kind is Kind.SIGNED else np.dtype(word)
    numbers = [source.view(number) for source in sources]
    function = {"product": np.multiply, "min": np.minimum, "max": np.maximum}.get(reduction.op, np.add)
    result = reduce(function, numbers)
    if reduction.op != "avg":
        yield result.view(word)
        return
    allowed = reduction.contract.average.value
    if any(form.startswith("sum") for form in allowed):
        for quotient in _quotients(result, reduction.ranks):
            yield quotient.astype(number).view(word)
        if reduction.contract.accumulation.value == "native or wide":
            # Python's integers, as there is nothing wider than 64 bits.
            wide = number.itemsize < 8
            whole = reduce(np.add, [each.astype(np.int64 if wide else object) for each in numbers])
            for quotient in _quotients(whole, reduction.ranks):
                yield quotient.astype(number).view(word)
    if any(form.startswith("pre") for form in allowed):
        # Each division in the same direction.
        for quotients in zip(*(_quotients(each, reduction.ranks) for each in numbers), strict=True):
            yield reduce(np.add, [quotient.astype(number) for quotient in quotients]).view(word)


def _quotients(numbers: npt.NDArray[Any], divisor: int) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Integers divided towards zero, and towards minus infinity, in 64 bits: in fewer a divisor may not fit."""
    if numbers.dtype.kind in "iu":
        numbers = numbers.astype(f"{numbers.dtype.kind}8")
        by = numbers.dtype.type(divisor)
    else:
        by = divisor
    down = numbers // by
    return down + ((down < 0) & (down * by != numbers)), down


def _extremum_forms(reduction: Reduction, sources: list[Bits], fmt: FloatFormat) -> Iterator[Bits]:
    """MIN and MAX of floats: an input that equals the extremum, so that zeros of both signs may give either.

    With NaN among the inputs: NaN; and unless it propagates, any other input, because a comparison that keeps its first
    or its second argument when one is NaN gives each of them in some order.
    """
    flush = _flushes(reduction)[-1][0]
    decoded = [flush(values(source, fmt, np.float64), fmt) for source in sources]
    pick = np.fmin if reduction.op == "min" else np.fmax
    extremum = decoded[0]
    for value in decoded[1:]:
        extremum = pick(extremum, value)
    nan = _any_nan(fmt, sources)
    free = nan & (reduction.contract.nan_extremum.value != "propagates")
    canonical_word = word_type(reduction.dtype)(canonical_nan(fmt))
    predicted = sources[0]
    for source, value in zip(sources[::-1], decoded[::-1], strict=True):
        predicted = np.where(value == extremum, source, predicted)
    predicted = np.where(nan, canonical_word, predicted)
    yield predicted
    for source, value in zip(sources, decoded, strict=True):
        yield canonical(np.where(free | (~nan & (value == extremum)), source, predicted), fmt)
    if reduction.contract.subnormals.value == "may flush":
        sign = word_type(reduction.dtype)(1 << (fmt.bits - 1))
        yield np.where(~nan & (extremum == 0), predicted & sign, predicted)


def _flush(numbers: Values, fmt: FloatFormat) -> Values:
    """Subnormal numbers become zeros of the same sign."""
    smallest = 2.0 ** (1 - fmt.bias)
    return np.where(np.abs(numbers) < smallest, np.copysign(numbers.dtype.type(0), numbers), numbers)


def _keep(numbers: Values, fmt: FloatFormat) -> Values:
    return numbers


def _flushes(reduction: Reduction) -> list[tuple[Any, Any]]:
    """(what happens to operands, what happens to results): gradual underflow, and where the contract allows it FTZ,
    DAZ and both."""
    if reduction.contract.subnormals.value == "exact":
        return [(_keep, _keep)]
    return [(_keep, _keep), (_keep, _flush), (_flush, _keep), (_flush, _flush)]


@dataclass(frozen=True, slots=True)
class _Arithmetic:
    """One way to compute in a format: numbers held in `wide`, and rounded to the format or kept.

    float32 is computed in float64 and formats of at most 16 bits in float32. Rounding twice is the same as rounding
    once for + - * / where the wide format has at least 2p + 2 bits of precision (Figueroa, "When is double rounding
    innocuous?", SIGNUM Newsletter 30, 1995): 53 >= 2 * 24 + 2 and 24 >= 2 * 11 + 2.
    """

    fmt: FloatFormat
    wide: type[np.floating[Any]]
    multiplies: bool
    operand: Any
    result: Any

    def load(self, words: Bits) -> Values:
        return values(words, self.fmt, self.wide)

    def narrow(self, numbers: Values) -> Values:
        """Round to the format, and hold the result in `wide` again."""
        if self.fmt.bits == 32:
            numbers = numbers.astype(np.float32).astype(np.float64)
        elif self.fmt.bits <= 16:
            numbers = values(round_to(numbers, self.fmt), self.fmt, self.wide)
        flushed: Values = self.result(numbers, self.fmt)
        return flushed

    def node(self, left: Values, right: Values) -> Values:
        """One operation, not rounded to the format."""
        left, right = self.operand(left, self.fmt), self.operand(right, self.fmt)
        return left * right if self.multiplies else left + right

    def words(self, numbers: Values) -> Bits:
        return round_to(numbers, self.fmt)


def _tree_forms(reduction: Reduction, sources: list[Bits], fmt: FloatFormat) -> Iterator[Bits]:
    wide = np.float32 if fmt.bits <= 16 else np.float64
    multiplies = reduction.op == "product"
    # Only products need the second way: bfloat16's underflow within float32, and a fused multiply-add rounds once.
    scales = multiplies or reduction.op in ("premul_sum", "avg")
    wides = [wide, np.float64] if fmt.bits <= 16 and scales else [wide]
    averages = reduction.contract.average.value if reduction.op == "avg" else ("",)
    for operand, result in _flushes(reduction):
        for each in wides:
            for average in averages:
                arithmetic = _Arithmetic(fmt, each, multiplies, operand, result)
                yield from _trees(reduction, arithmetic, sources, average)


def _trees(reduction: Reduction, arithmetic: _Arithmetic, sources: list[Bits], average: str) -> Iterator[Bits]:
    """All results of one arithmetic and one form of the average."""
    narrow, node, wide = arithmetic.narrow, arithmetic.node, arithmetic.wide
    # Float64 has nothing wider.
    stays_wide = reduction.contract.accumulation.value == "native or wide" and arithmetic.fmt.bits < 64
    loaded = [arithmetic.load(source) for source in sources]
    leaves = [[leaf] for leaf in loaded]
    factors: list[Any] = []
    if average == "pre/n":
        divided = [leaf / wide(reduction.ranks) for leaf in loaded]
        leaves = [[narrow(leaf), leaf] if stays_wide else [narrow(leaf)] for leaf in divided]
    elif reduction.op == "premul_sum":
        factors = _both(narrow, wide(reduction.factor))
    elif average == "pre*(1/n)":
        factors = _both(narrow, wide(1) / wide(reduction.ranks))

    def finish(root: Values) -> Iterator[Values]:
        """The sum or product as it is, or divided, or multiplied by the reciprocal; each rounding to the format."""
        totals = [narrow(root), root] if stays_wide and average else [narrow(root)]
        for total in totals:
            if average == "sum/n":
                yield narrow(total / wide(reduction.ranks))
            elif average == "sum*(1/n)":
                for reciprocal in _both(narrow, wide(1) / wide(reduction.ranks)):
                    yield narrow(total * reciprocal)
            else:
                yield narrow(total)

    def keep(number: Values) -> list[Values]:
        return [narrow(number), number] if stays_wide else [narrow(number)]

    for factor in factors or [None]:
        if factor is not None:
            # Rounded after the multiplication, or fused with the addition that follows.
            leaves = [[narrow(leaf * factor), leaf * factor] for leaf in loaded]
        total = leaves[0][0]
        for leaf in leaves[1:]:
            total = narrow(node(total, leaf[0]))
        for number in finish(total):
            yield arithmetic.words(number)
        for root in _roots(leaves, node, keep):
            for number in finish(root):
                yield arithmetic.words(number)
        if stays_wide and len(sources) > 2 and not arithmetic.multiplies:
            # In-network reduction: one wide addition of all.
            exact = _Arithmetic(arithmetic.fmt, np.float64, False, arithmetic.operand, arithmetic.result)
            scale = 1.0 if factor is None else float(factor)
            divisor = reduction.ranks if average in ("sum/n", "sum*(1/n)", "pre/n") else 1
            root = np.sum([exact.load(source) * scale for source in sources], axis=0) / divisor
            yield exact.words(exact.narrow(root))


def _both(narrow: Any, number: Any) -> list[Any]:
    """A scalar rounded to the format, and as it is, where that differs."""
    rounded = narrow(np.array([number]))[0]
    return [rounded] if rounded == number else [rounded, number]


def _roots(leaves: list[list[Values]], node: Any, keep: Any) -> Iterator[Values]:
    """The root, not yet rounded, of every binary tree over the leaves; `keep` says how an inner node may round.

    Dynamic programming over the subsets of leaves: each subset's possible values come from its splits in two.
    """
    if len(leaves) == 1:
        yield from leaves[0]
        return
    known = {1 << place: leaf for place, leaf in enumerate(leaves)}
    everything = (1 << len(leaves)) - 1
    for subset in range(3, everything):
        if subset not in known:
            known[subset] = [
                kept
                for part in _splits(subset)
                for left in known[part]
                for right in known[subset ^ part]
                for kept in keep(node(left, right))
            ]
    for part in _splits(everything):
        for left in known[part]:
            for right in known[everything ^ part]:
                yield node(left, right)


def _splits(subset: int) -> Iterator[int]:
    """One half of each way to cut a set of leaves in two: the half that holds the lowest leaf."""
    lowest = subset & -subset
    part = (subset - 1) & subset
    while part:
        if part & lowest:
            yield part
        part = (part - 1) & subset


_Part = tuple[npt.NDArray[np.int64], list[Bits], Reduction, How]


def _smaller(reduction: Reduction, sources: list[Bits]) -> Iterator[_Part]:
    """Elements of a reduction over many ranks that an enumerable one decides: (which, its sources, it, the verdict).

    Where at most five sources are not neutral (zero in a sum, one in a product), the others change nothing: adding a
    zero is exact, except that -0 + 0 is +0, which `_member` accepts. Where every partial sum is exact there is one sum.
    """
    fmt = reduction.dtype.format
    assert fmt is not None
    stacked = np.stack(sources)
    if reduction.op == "product":
        neutral = stacked == stacked.dtype.type(fmt.bias << fmt.mantissa)
    else:
        neutral = (stacked & stacked.dtype.type((1 << (fmt.bits - 1)) - 1)) == 0
    few = (~neutral).sum(axis=0) <= MAX_TREE
    where = np.flatnonzero(few)
    if len(where):
        order = np.argsort(neutral[:, where], axis=0, kind="stable")[:MAX_TREE]
        yield where, list(np.take_along_axis(stacked[:, where], order, axis=0)), reduction, How.MEMBER
    scales_first = reduction.op == "avg" and any(form.startswith("pre") for form in reduction.contract.average.value)
    if reduction.op not in ("sum", "avg") or scales_first:
        return
    where = np.flatnonzero(~few)
    if len(where):
        where = where[bound.exact_sum([source[where] for source in sources], fmt)]
    if len(where):
        total = next(_forms(replace(reduction, op="sum"), [source[where] for source in sources]))
        yield where, [total], reduction, How.EXACT


def _interval(reduction: Reduction, sources: Sequence[Bits]) -> bound.Interval:
    fmt = reduction.dtype.format
    assert fmt is not None
    if reduction.op == "product":
        return bound.product_interval(sources, fmt)
    scale = {"avg": 1.0 / reduction.ranks, "premul_sum": reduction.factor}.get(reduction.op, 1.0)
    interval = bound.sum_interval(sources, fmt, scale, scaled=reduction.op != "sum")
    if reduction.contract.subnormals.value == "exact":
        return interval
    # Each operand and each result may lose what is below the smallest normal number.
    lost = 3 * len(sources) * 2.0 ** (1 - fmt.bias) * max(1.0, abs(scale))
    return replace(interval, radius=interval.radius + lost)
