"""The data that a case names: any rank can compute what any other one contributed, from the case alone.

Counter-based and integer-only: the bits of element i are a hash (splitmix64's finaliser, Steele et al., "Fast
splittable pseudorandom number generators", OOPSLA 2014) of the case's seed, the tensor's name, the rank and i, so a
payload is the same on every machine and flushes, rounds and traps nothing.

Long payloads repeat a table of PERIOD elements, a prime, and each repetition starts at another place of the table. The
rotation depends on the case and the tensor, not on the rank, so that element i of every rank comes from the same place
of its table: a reduction over ranks needs to be computed on one table only. A shift by the period shows, because the
rotation changes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from corpus.case import MAX_OVERLAPPING, Case, Data, TensorSpec
from corpus.dtypes import DTYPES, DType, FloatFormat, Kind

Bits = npt.NDArray[Any]
"""Raw elements as unsigned integers: shape (n,) or, for complex numbers, (n, 2) of components."""

PERIOD: Final = MAX_OVERLAPPING
"""The largest prime below 2**14: a float32 table is 64 KB and stays in a core's cache."""

SPARSE_RANKS = 4
"""How many ranks contribute to one element of a "sparse" payload."""

LIST_STEP = 10
"""Positions by which the "index" data of one tensor of a list is ahead of the one before."""

_WORDS: dict[int, type[np.unsignedinteger[Any]]] = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


def word_type(dtype: DType) -> type[np.unsignedinteger[Any]]:
    """The unsigned integer that holds one component's bits."""
    return _WORDS[dtype.word]


def key(*parts: object) -> int:
    """64 bits that name a stream of random numbers."""
    text = "\0".join(str(part) for part in parts)
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little")


def hash_counters(stream: int, counters: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """splitmix64's finaliser over counter * golden ratio + stream: 64 random bits a counter."""
    z = counters * np.uint64(0x9E3779B97F4A7C15) + np.uint64(stream)
    z ^= z >> np.uint64(30)
    z *= np.uint64(0xBF58476D1CE4E5B9)
    z ^= z >> np.uint64(27)
    z *= np.uint64(0x94D049BB133111EB)
    z ^= z >> np.uint64(31)
    return z


def integer_bits(values: npt.NDArray[np.int64], dtype: DType) -> Bits:
    """The bits of small integers in a dtype, exactly where they fit (|value| <= `exact_limit`)."""
    word = word_type(dtype)
    if dtype.kind is Kind.BOOL:
        return (values & 1).astype(word)
    if dtype.format is None:
        return values.astype(np.int64).view(np.uint64).astype(word)
    fmt = dtype.format
    magnitude = np.abs(values).astype(np.uint64)
    length = np.zeros(values.shape, dtype=np.uint64)
    for shift in (32, 16, 8, 4, 2, 1):
        big = (magnitude >> (length + np.uint64(shift))) > 0
        length += np.where(big, np.uint64(shift), np.uint64(0))
    exponent = length + np.uint64(fmt.bias)
    mantissa = (magnitude << (np.uint64(fmt.mantissa) - length)) & np.uint64((1 << fmt.mantissa) - 1)
    bits = np.where(magnitude == 0, np.uint64(0), (exponent << np.uint64(fmt.mantissa)) | mantissa)
    bits |= np.where(values < 0, np.uint64(1) << np.uint64(fmt.bits - 1), np.uint64(0))
    return bits.astype(word)


def exact_limit(dtype: DType) -> int:
    """Largest n such that every integer up to n is exact in the dtype and not above its range."""
    if dtype.kind in (Kind.BOOL, Kind.OPAQUE):
        return 1
    if dtype.format is None:
        return int((1 << (8 * dtype.itemsize - (1 if dtype.kind is Kind.SIGNED else 0))) - 1)
    by_range = 1 << min(dtype.format.bias, 62)
    return int(min(1 << (dtype.format.mantissa + 1), by_range))


@dataclass(frozen=True, slots=True)
class Payload:
    """The data of one tensor on one rank: `numel` elements of `dtype`.

    `table` holds the first min(numel, `period`) elements before rotation; `blocks` says where each stretch comes from.
    Data that were computed have a table of all their elements (`dense`).
    """

    dtype: DType
    numel: int
    table: Bits
    stream: int
    period: int = PERIOD

    def blocks(self, start: int, length: int) -> Iterator[tuple[int, int, int]]:
        """Cut [start, start + length) into stretches (offset from `start`, table index, count) that are contiguous."""
        position, end = start, start + length
        entries = len(self.table)
        while position < end:
            repetition, place = divmod(position, self.period)
            index = (place + rotation(self.stream, repetition)) % entries if repetition else place
            count = min(end - position, self.period - place, entries - index)
            yield position - start, index, count
            position += count

    def write(self, out: Bits, start: int = 0) -> None:
        """Fill `out` with the elements from `start` on."""
        for offset, index, count in self.blocks(start, len(out)):
            out[offset : offset + count] = self.table[index : index + count]

    def bits(self, start: int = 0, length: int | None = None) -> Bits:
        """Return elements [start, start + length) as bits, in a new array."""
        count = self.numel - start if length is None else length
        out = np.empty((count, *self.table.shape[1:]), dtype=self.table.dtype)
        self.write(out, start)
        return out

    def places(self, positions: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Table index of each position (element index in the payload)."""
        repetition, place = np.divmod(positions, self.period)
        turns = np.array([rotation(self.stream, int(r)) if r else 0 for r in np.unique(repetition)], dtype=np.int64)
        turn = turns[np.searchsorted(np.unique(repetition), repetition)]
        index: npt.NDArray[np.int64] = (place + turn) % max(len(self.table), 1)
        return index


def dense(dtype: DType, table: Bits, stream: int = 0) -> Payload:
    """Data that stand in full in a table of shape (n,), or (n, 2) for complex numbers."""
    return Payload(dtype, len(table), table, stream, period=max(len(table), 1))


def negated(words: Bits, dtype: DType) -> Bits:
    """The words of -x: the sign bit of floats flipped, integers modulo 2**bits."""
    if dtype.format is None:
        return np.asarray(np.negative(words))
    return np.asarray(words ^ words.dtype.type(1 << (dtype.format.bits - 1)))


def scaled(words: Bits, dtype: DType, exponent: int) -> Bits:
    """The words of x * 2**exponent where that rounds nothing: floats that stay normal or are zero, integers modulo
    2**bits (for which `exponent` is not negative)."""
    if dtype.format is None:
        return np.asarray(words << words.dtype.type(exponent))
    fmt = dtype.format
    magnitude = words & words.dtype.type((1 << (fmt.bits - 1)) - 1)
    step = words.dtype.type(abs(exponent) << fmt.mantissa)
    moved = words + step if exponent >= 0 else words - step
    return np.where(magnitude == 0, words, moved)


@lru_cache(maxsize=65536)
def rotation(stream: int, repetition: int) -> int:
    """Where repetition 1, 2, ... of a table starts in it."""
    return key("rotation", stream, repetition) % PERIOD


def payload(case: Case, name: str, rank: int) -> Payload:
    """Return the data that `rank` (global) puts into a tensor, in row-major logical order.

    Where the view overlaps itself (an expanded tensor), elements that share memory share their value.

    Raises:
        ValueError: the tensor is returned by the library, so it has no data.
    """
    spec = case.tensor(name).on(rank)
    if spec.payload is None:
        raise ValueError(f"tensor {name} is returned by the library")
    data = case.tensor(name).data
    if data is not None:
        given = payload(case, data.tensor, (rank + data.shift) % case.world.size)
        return _taken(given, data, spec.numel)
    if spec.overlaps:
        return _overlapping(case.seed, name, rank, case.world.size, spec)
    return _payload(case.seed, name, rank, case.world.size, spec.payload, spec.dtype, spec.numel)


def _taken(given: Payload, data: Data, numel: int) -> Payload:
    """Data taken from another tensor's."""
    if data.start:
        given = dense(given.dtype, given.bits(data.start, numel))
    table = scaled(given.table, given.dtype, data.exponent) if data.exponent else given.table
    return Payload(given.dtype, numel, table, given.stream, given.period)


def guard(case: Case, name: str, rank: int) -> Payload:
    """Return what the whole base storage of a tensor holds wherever the view does not reach.

    "Wide" data: a reduction that strays there changes it on every rank, where random bits would swallow one another.
    """
    spec = case.tensor(name).on(rank)
    return _payload(case.seed, f"{name}/guard", rank, case.world.size, "wide", spec.dtype, spec.storage_elements)


@lru_cache(maxsize=64)
def _overlapping(seed: int, name: str, rank: int, world: int, spec: TensorSpec) -> Payload:
    stored = _payload(seed, name, rank, world, str(spec.payload), spec.dtype, spec.span)
    offsets = np.zeros(spec.shape, dtype=np.int64)
    for axis, (extent, stride) in enumerate(zip(spec.shape, spec.strides, strict=True)):
        steps = np.arange(extent, dtype=np.int64) * stride
        offsets += steps.reshape([-1 if other == axis else 1 for other in range(len(spec.shape))])
    table = stored.bits()[offsets.reshape(-1)]
    table.flags.writeable = False
    return Payload(stored.dtype, spec.numel, table, stored.stream)


@lru_cache(maxsize=256)
def _payload(seed: int, name: str, rank: int, world: int, kind: str, dtype_name: str, numel: int) -> Payload:
    dtype = DTYPES[dtype_name]
    count = min(numel, PERIOD)
    components = dtype.components
    counters = np.arange(count * components, dtype=np.uint64)
    table = _KINDS[kind](seed, name, rank, world, dtype, counters)
    if components > 1:
        table = table.reshape(count, components)
    table.flags.writeable = False
    return Payload(dtype, numel, table, key(seed, name))


def index_offset(name: str) -> int:
    """Where the "index" data of a tensor starts counting: the tensors x0, x1, ... of a list are told apart by it."""
    return LIST_STEP * (int("0" + "".join(filter(str.isdigit, name))) % 64)


def limit(case: Case, name: str, rank: int) -> int | None:
    """The largest magnitude among the data of a tensor that holds integers, "index" or "exact"; None for the others."""
    spec, data = case.tensor(name).on(rank), case.tensor(name).data
    dtype, world = DTYPES[spec.dtype], case.world.size
    if data is not None:
        taken = limit(case, data.tensor, (rank + data.shift) % world)
        return None if taken is None or data.exponent < 0 else taken << data.exponent
    if dtype.format is None or spec.payload not in ("index", "exact"):
        return None
    room = max(exact_limit(dtype) // world, 1)
    if spec.payload == "exact":
        return min(room, 1 << 16)
    last = (min(spec.numel if not spec.overlaps else spec.span, PERIOD) + index_offset(name)) * world + 1
    return min(last, room)


def _index(seed: int, name: str, rank: int, world: int, dtype: DType, counters: npt.NDArray[np.uint64]) -> Bits:
    """Integers that tell rank and position apart as far as the dtype can, and whose sum over all ranks is exact."""
    room = max(exact_limit(dtype) // world, 1)
    first = index_offset(name)
    if room > 1 and (len(counters) + first) * world + 1 <= room:
        values = (counters + np.uint64(first)) * np.uint64(world) + np.uint64(rank + 1)
    elif room > 1:
        values = hash_counters(key(seed, name, rank), counters) % np.uint64(room) + np.uint64(1)
    else:
        values = hash_counters(key(seed, name, rank), counters) >> np.uint64(56)
        if dtype.format is not None:
            values &= np.uint64(1)
    return integer_bits(values.astype(np.int64), dtype)


def _exact(seed: int, name: str, rank: int, world: int, dtype: DType, counters: npt.NDArray[np.uint64]) -> Bits:
    """Small integers of both signs: any order of additions is exact."""
    limit = max(min(exact_limit(dtype) // world, 1 << 16), 1)
    random = hash_counters(key(seed, name, rank), counters)
    low = limit if dtype.kind in (Kind.FLOAT, Kind.COMPLEX, Kind.SIGNED) else 0
    values = (random % np.uint64(limit + low + 1)).astype(np.int64) - low
    return integer_bits(values, dtype)


def _wide(seed: int, name: str, rank: int, world: int, dtype: DType, counters: npt.NDArray[np.uint64]) -> Bits:
    """Random sign and mantissa, exponents close enough that each rank shows in a sum and far enough that order does."""
    random = hash_counters(key(seed, name, rank), counters)
    fmt = dtype.format
    if fmt is None:
        return random_bits(random, dtype)
    spread = np.uint64(max(2, min(12, 1 << (fmt.exponent - 2))))
    exponent = np.uint64(fmt.bias) + (random >> np.uint64(53)) % spread - spread // np.uint64(2)
    mantissa = random & np.uint64((1 << fmt.mantissa) - 1)
    sign = random >> np.uint64(63) << np.uint64(fmt.bits - 1)
    bits: Bits = (sign | exponent << np.uint64(fmt.mantissa) | mantissa).astype(word_type(dtype))
    return bits


def random_bits(random: npt.NDArray[np.uint64], dtype: DType) -> Bits:
    """Full-range bits: every value of an integer dtype; 0 or 1 for bool."""
    if dtype.kind is Kind.BOOL:
        return (random >> np.uint64(63)).astype(np.uint8)
    return (random >> np.uint64(64 - 8 * dtype.word)).astype(word_type(dtype))


def special_values(dtype: DType) -> list[int]:
    """Bits of the values where arithmetic has edges: zeros, one, extremes; subnormals, infinities and NaN of floats."""
    fmt = dtype.format
    if dtype.kind is Kind.BOOL:
        return [0, 1]
    if fmt is None:
        top = 1 << (8 * dtype.word - 1)
        return [0, 1, top - 1, top, top + 1, 2 * top - 1]
    positive = [0, 1, (1 << fmt.mantissa) - 1, 1 << fmt.mantissa, fmt.bias << fmt.mantissa, largest(fmt)]
    positive.append((fmt.bias << fmt.mantissa) | 1)
    if fmt.infinity:
        infinity = ((1 << fmt.exponent) - 1) << fmt.mantissa
        positive += [infinity, infinity | 1 << (fmt.mantissa - 1)]
    elif fmt.nan is not None and fmt.nan < 1 << (fmt.bits - 1):
        positive.append(fmt.nan)
    negative_zero = fmt.nan == 1 << (fmt.bits - 1)
    negative = [value | 1 << (fmt.bits - 1) for value in positive if value or not negative_zero]
    return positive + negative


def largest(fmt: FloatFormat) -> int:
    """Bits of the largest finite number."""
    if fmt.infinity:
        return (((1 << fmt.exponent) - 1) << fmt.mantissa) - 1
    top = (1 << (fmt.bits - 1)) - 1
    return top - 1 if top == fmt.nan else top


def _special(seed: int, name: str, rank: int, world: int, dtype: DType, counters: npt.NDArray[np.uint64]) -> Bits:
    """Half the elements are edge values, the rest "wide"; now and then a rank cancels the one before it."""
    bits = _wide(seed, name, rank, world, dtype, counters)
    choice = hash_counters(key("special", seed, name, rank), counters)
    table = np.array(special_values(dtype), dtype=word_type(dtype))
    edges = table[(choice >> np.uint64(8)) % np.uint64(len(table))]
    bits = np.where(choice & np.uint64(1) == 0, edges, bits)
    fmt = dtype.format
    if fmt is not None and fmt.infinity and rank > 0:
        cancel = hash_counters(key("cancel", seed, name), counters) % np.uint64(8) == 0
        previous = _wide(seed, name, rank - 1, world, dtype, counters) ^ word_type(dtype)(1 << (fmt.bits - 1))
        bits = np.where(cancel, previous, bits)
    return bits.astype(word_type(dtype))


def _sparse(seed: int, name: str, rank: int, world: int, dtype: DType, counters: npt.NDArray[np.uint64]) -> Bits:
    """ "Wide" values, zero except on SPARSE_RANKS ranks, which rotate with the position."""
    bits = _wide(seed, name, rank, world, dtype, counters)
    turn = (counters // np.uint64(dtype.components) + np.uint64(rank)) % np.uint64(world)
    bits[turn >= SPARSE_RANKS] = 0
    return bits


def _poison(seed: int, name: str, rank: int, world: int, dtype: DType, counters: npt.NDArray[np.uint64]) -> Bits:
    """What an output holds before the call: random bits that no result resembles (0 or 1 for bool)."""
    return random_bits(hash_counters(key("poison", seed, name, rank), counters), dtype)


_KINDS = {
    "index": _index,
    "exact": _exact,
    "wide": _wide,
    "special": _special,
    "sparse": _sparse,
    "poison": _poison,
}
