"""The fuzzer's payload generator as torch code: the same bits as `corpus.payload`, in a script that stands alone."""

from __future__ import annotations

from collections.abc import Iterable

from corpus.dtypes import DTYPES, DType, FloatFormat, Kind
from corpus.payload import LIST_STEP, PERIOD, SPARSE_RANKS, exact_limit, special_values

_COMMON = f'''
def key(*parts):
    """64 bits that name a stream of random numbers."""
    text = "\\0".join(str(part) for part in parts)
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little")


def shift(z, k):
    """Logical shift to the right of 64-bit numbers."""
    return (z >> k) & ((1 << (64 - k)) - 1)


def numbers(n, *parts):
    """Random 64-bit numbers: splitmix64 of a counter."""
    stream = key(*parts)
    z = torch.arange(n) * -0x61C8864680B583EB + (stream - (stream >> 63 << 64))
    z = (z ^ shift(z, 30)) * -0x40A7B892E31B1A47
    z = (z ^ shift(z, 27)) * -0x6B2FB644ECCEEE15
    return z ^ shift(z, 31)


def repeat(table, name, n):
    """`n` elements of a table of at most {PERIOD}, each repetition starting elsewhere in it."""
    starts = [0] + [key("rotation", key(SEED, name), k) % {PERIOD} for k in range(1, -(-n // {PERIOD}))]
    return torch.cat([torch.cat([table[start:], table[:start]]) for start in starts])[:n].clone()
'''

_MODULO = '''
def modulo(z, m):
    """Remainder of unsigned 64-bit numbers."""
    return (shift(z, 32) % m * (2**32 % m) + (z & 0xFFFFFFFF) % m) % m
'''


def helpers(generators: Iterable[tuple[str, str]], seed: int, world: int) -> list[str]:
    """Lines that define `KIND_DTYPE(name, rank, n)` for each (payload kind, dtype), and what these need."""
    bodies: dict[str, list[str]] = {}
    for kind, dtype_name in generators:
        _define(bodies, kind, DTYPES[dtype_name], world)
    text = "\n".join("\n".join(body) for body in bodies.values())
    common = _COMMON + ("\n" + _MODULO if "modulo(" in text else "")
    return [f"SEED = {seed}", "", *common.splitlines(), "", *text.splitlines()]


def _define(bodies: dict[str, list[str]], kind: str, dtype: DType, world: int) -> None:
    name = f"{kind}_{dtype.name}"
    if name in bodies:
        return
    if kind in ("special", "sparse"):
        _define(bodies, "wide", dtype, world)
    count = f"min(n, {PERIOD})" + (" * 2" if dtype.components == 2 else "")
    expression = _NUMBERS[kind](dtype, world)
    bodies[name] = [
        "",
        f"def {name}_words(name, rank, n):",
        *(f"    {line}" for line in expression),
        "",
        f"def {name}(name, rank, n):",
        f"    words = {name}_words(name, rank, {count})",
        f"    return repeat({_typed(kind, dtype)}, name, n)",
        "",
    ]


def _typed(kind: str, dtype: DType) -> str:
    """`words` in the dtype: converted where they are numbers, viewed where they are bits."""
    if kind in ("index", "exact") and dtype.kind is Kind.BOOL:
        return "(words & 1).bool()"
    if kind in ("index", "exact") and dtype.format is not None:
        real = f"words.to(torch.{_real(dtype)})"
        return f"torch.view_as_complex({real}.view(-1, 2))" if dtype.components == 2 else real
    if dtype.kind is Kind.BOOL:
        return "words.bool()"
    integer = {1: "uint8", 2: "int16", 4: "int32", 8: "int64"}[dtype.word]
    bits = "words" if integer == "int64" else f"words.to(torch.{integer})"
    if dtype.components == 2:
        return f"torch.view_as_complex({bits}.view(torch.{_real(dtype)}).view(-1, 2))"
    return bits if dtype.name == integer else f"{bits}.view(torch.{dtype.name})"


def _real(dtype: DType) -> str:
    return {2: "float16", 4: "float32", 8: "float64"}[dtype.word] if dtype.components == 2 else dtype.name


def _index(dtype: DType, world: int) -> list[str]:
    room = max(exact_limit(dtype) // world, 1)
    if room == 1:
        return [f"return shift(numbers(n, SEED, name, rank), 56){' & 1' if dtype.format else ''}"]
    random = f"modulo(numbers(n, SEED, name, rank), {room}) + 1"
    first = f'{LIST_STEP} * (int("0" + "".join(filter(str.isdigit, name))) % 64)'
    return [
        f"first = {first}",
        f"if (n + first) * WORLD + 1 > {room}:",
        f"    return {random}",
        "return torch.arange(first, first + n) * WORLD + rank + 1",
    ]


def _exact(dtype: DType, world: int) -> list[str]:
    limit = max(min(exact_limit(dtype) // world, 1 << 16), 1)
    low = limit if dtype.kind in (Kind.FLOAT, Kind.COMPLEX, Kind.SIGNED) else 0
    return [f"return modulo(numbers(n, SEED, name, rank), {limit + low + 1}) - {low}"]


def _wide(dtype: DType, world: int) -> list[str]:
    fmt = dtype.format
    if fmt is None:
        return [f"return {_bits(dtype, 'numbers(n, SEED, name, rank)')}"]
    spread = max(2, min(12, 1 << (fmt.exponent - 2)))
    return [
        "z = numbers(n, SEED, name, rank)",
        f"exponent = {fmt.bias - spread // 2} + shift(z, 53) % {spread}",
        f"return shift(z, 63) << {fmt.bits - 1} | exponent << {fmt.mantissa} | z & {_mask(fmt)}",
    ]


def _mask(fmt: FloatFormat) -> str:
    return hex((1 << fmt.mantissa) - 1)


def _bits(dtype: DType, random: str) -> str:
    if dtype.kind is Kind.BOOL:
        return f"shift({random}, 63)"
    return random if dtype.word == 8 else f"shift({random}, {64 - 8 * dtype.word})"


def _special(dtype: DType, world: int) -> list[str]:
    edges = [_signed(value) for value in special_values(dtype)]
    lines = [
        f"edges = torch.tensor([{', '.join(map(str, edges))}])",
        f"wide = wide_{dtype.name}_words(name, rank, n)",
        'z = numbers(n, "special", SEED, name, rank)',
        "words = torch.where(z & 1 == 0, edges[shift(z, 8) % len(edges)], wide)",
    ]
    fmt = dtype.format
    if fmt is not None and fmt.infinity:
        sign = _signed(1 << (fmt.bits - 1))
        lines += [
            "if rank > 0:  # cancel the rank before this one",
            '    cancels = numbers(n, "cancel", SEED, name) & 7 == 0',
            f"    words = torch.where(cancels, wide_{dtype.name}_words(name, rank - 1, n) ^ {sign}, words)",
        ]
    return [*lines, "return words"]


def _signed(value: int) -> int:
    return value - (value >> 63 << 64)


def _sparse(dtype: DType, world: int) -> list[str]:
    place = "torch.arange(n) // 2" if dtype.components == 2 else "torch.arange(n)"
    return [
        f"words = wide_{dtype.name}_words(name, rank, n)",
        f"words[({place} + rank) % WORLD >= {SPARSE_RANKS}] = 0",
        "return words",
    ]


def _poison(dtype: DType, world: int) -> list[str]:
    random = 'numbers(n, "poison", SEED, name, rank)'
    return [f"return {_bits(dtype, random)}"]


_NUMBERS = {
    "index": _index,
    "exact": _exact,
    "wide": _wide,
    "special": _special,
    "sparse": _sparse,
    "poison": _poison,
}
