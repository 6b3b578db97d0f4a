"""How values and views are written in torch, as a person would."""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from corpus.case import TensorSpec, contiguous_strides
from corpus.dtypes import DTYPES, DType, FloatFormat, Kind
from corpus.payload import Bits

WIDTH = 116
"""Longest line of code that is written."""


class ReproError(ValueError):
    """A case that cannot be written as a script by this version: one line that says why."""


def fold(line: str) -> list[str]:
    """Break a long line of code inside its brackets, as far outside as possible."""
    indent = " " * (len(line) - len(line.lstrip()) + 4)
    lines, depth = [], 0
    while len(line) > WIDTH:
        places = [(-deep, place) for deep, place in _breaks(line, depth) if len(indent) < place < WIDTH]
        if not places:
            break
        deep, cut = max(places)
        depth = -deep
        lines.append(line[:cut].rstrip())
        line = indent + line[cut:].lstrip()
    return [*lines, line]


def _breaks(line: str, depth: int) -> list[tuple[int, int]]:
    """Where a line that starts inside `depth` brackets may be broken: after a comma, or before "for"."""
    places, quoted = [], False
    for index, character in enumerate(line):
        if character == '"':
            quoted = not quoted
        elif not quoted:
            depth += (character in "([{") - (character in ")]}")
            if depth and line.startswith(", ", index):
                places.append((depth, index + 1))
            elif depth and line.startswith(" for ", index):
                places.append((depth, index))
    return places


def dtype_argument(dtype: str, literal: str = "") -> str:
    """`, dtype=torch.float16`, or nothing where torch infers the dtype from the literal."""
    inferred = {
        "float32": "." in literal or "e" in literal,
        "int64": literal.lstrip("-").isdigit(),
        "bool": literal in ("True", "False"),
        "complex64": "j" in literal,
    }
    return "" if inferred.get(dtype, False) else f", dtype=torch.{dtype}"


def decode(bits: int, fmt: FloatFormat) -> float:
    """The number that the bits of a binary floating-point format stand for."""
    if fmt.bits == 64:
        value: float = struct.unpack("<d", struct.pack("<Q", bits))[0]
        return value
    sign = -1.0 if bits >> (fmt.bits - 1) else 1.0
    exponent = bits >> fmt.mantissa & (1 << fmt.exponent) - 1
    mantissa = bits & (1 << fmt.mantissa) - 1
    top = (1 << fmt.exponent) - 1
    if fmt.infinity and exponent == top:
        return math.copysign(math.nan if mantissa else math.inf, sign)
    if fmt.nan is not None and bits in (fmt.nan, fmt.nan | 1 << (fmt.bits - 1)):
        return math.copysign(math.nan, sign)
    if exponent == 0:
        return sign * math.ldexp(mantissa, 1 - fmt.bias - fmt.mantissa)
    return sign * math.ldexp(mantissa | 1 << fmt.mantissa, exponent - fmt.bias - fmt.mantissa)


def _quiet(fmt: FloatFormat) -> int:
    """Bits that torch gives to a literal nan."""
    return ((1 << fmt.exponent) - 1) << fmt.mantissa | 1 << (fmt.mantissa - 1)


def number(bits: int, dtype: DType, *, any_nan: bool = False) -> str | None:
    """One real component as a Python literal that torch turns into exactly these bits, or None if there is none.

    With `any_nan` every NaN is as good as another.
    """
    if dtype.kind is Kind.BOOL:
        return str(bool(bits)) if bits < 2 else None
    if dtype.kind is Kind.OPAQUE:
        return None
    fmt = dtype.format
    if fmt is None:
        top = 1 << (8 * dtype.word)
        return str(bits - top if dtype.kind is Kind.SIGNED and bits >= top // 2 else bits)
    value = decode(bits, fmt)
    if math.isnan(value):
        if any_nan:
            return "nan"
        magnitude = bits & (1 << (fmt.bits - 1)) - 1
        signed = bits != magnitude
        # torch drops the sign of a bfloat16 NaN, and has its own for eight bits.
        plain = fmt.bits > 8 and magnitude == _quiet(fmt) and not (signed and dtype.name == "bfloat16")
        return ("-nan" if signed else "nan") if plain else None
    if math.isinf(value):
        return str(value)
    if fmt.bits == 64:
        return repr(value)
    return str(np.float16(value) if (fmt.exponent, fmt.mantissa) == (5, 10) else np.float32(value))


def literals(table: Bits, dtype: DType, *, any_nan: bool = False) -> list[str] | None:
    """Elements as Python literals, or None if one of them has no exact literal."""
    if dtype.components == 2:
        pairs = [(number(int(re), dtype), number(int(im), dtype)) for re, im in table]
        return [_complex(re, im) for re, im in pairs] if all(_plain(part) for p in pairs for part in p) else None
    found = [number(int(bits), dtype, any_nan=any_nan) for bits in table]
    return [text for text in found if text is not None] if None not in found else None


def _plain(part: str | None) -> bool:
    return part is not None and part != "-0.0" and "n" not in part


def _complex(re: str | None, im: str | None) -> str:
    sign = "" if str(im).startswith("-") else "+"
    return f"{re}{sign}{im}j"


def nested(items: Sequence[str], shape: tuple[int, ...]) -> str:
    """Elements in row-major order as nested lists."""
    if not shape:
        return items[0]
    step = math.prod(shape[1:])
    return "[" + ", ".join(nested(items[i * step : (i + 1) * step], shape[1:]) for i in range(shape[0])) + "]"


def picked(choices: dict[int, str], variable: str = "rank") -> str:
    """The choice of each rank: one text where all agree, a list or a dictionary indexed by rank where they differ."""
    if len(set(choices.values())) == 1:
        return next(iter(choices.values()))
    if list(choices) == list(range(len(choices))):
        return f"[{', '.join(choices.values())}][{variable}]"
    return "{" + ", ".join(f"{rank}: {text}" for rank, text in choices.items()) + f"}}[{variable}]"


def literal(tables: dict[int, Bits], dtype: DType, shape: tuple[int, ...], *, any_nan: bool = False) -> str:
    """`torch.tensor(...)` of each rank's elements; bits where numbers have no exact literal."""
    texts = {rank: literals(table, dtype, any_nan=any_nan) for rank, table in tables.items()}
    if all(text is not None for text in texts.values()):
        lists = {rank: nested(text, shape) for rank, text in texts.items() if text is not None}
        sample = next((text[0] for text in texts.values() if text), "")
        return f"torch.tensor({picked(lists)}{dtype_argument(dtype.name, sample)})"
    if dtype.components == 2:
        parts = {rank: table.reshape(-1) for rank, table in tables.items()}
        return f"torch.view_as_complex({literal(parts, _part(dtype), (*shape, 2), any_nan=any_nan)})"
    lists = {rank: nested([hex(int(bits)) for bits in table.reshape(-1)], shape) for rank, table in tables.items()}
    return f"torch.tensor({picked(lists)}, dtype=torch.uint{8 * dtype.word}).view(torch.{dtype.name})"


def _part(dtype: DType) -> DType:
    name = {2: "float16", 4: "float32", 8: "float64"}[dtype.word]
    return DTYPES[name]


@dataclass(frozen=True, slots=True)
class View:
    """A view of a base of shape `base`: what is written after the base, and the lazy bits around all of it."""

    base: tuple[int, ...]
    suffix: str

    def of(self, base: str, spec: TensorSpec) -> str:
        """The view of a base that is written so."""
        text = base + self.suffix + (".conj()" if spec.layout.conj else "")
        return f"torch._neg_view({text})" if spec.layout.neg else text


def _dims(extents: Sequence[int]) -> str:
    return ", ".join(str(extent) for extent in extents)


def _slice(start: int, count: int, step: int, length: int) -> str:
    """`[start:stop:step]` of `count` elements out of `length`, bounds left out where they say nothing."""
    stop = start + (count - 1) * step + 1
    open_end = len(range(start, length, step)) == count
    text = f"{start or ''}:{'' if open_end else stop}"
    return text + (f":{step}" if step > 1 else "")


def view(spec: TensorSpec) -> View:
    """How the view of a spec is written over its base storage."""
    layout, shape, strides, size = spec.layout, spec.shape, spec.strides, spec.storage_elements
    if spec.numel:
        if not layout.before and not layout.after and strides == contiguous_strides(shape):
            return View(shape, "")
        for attempt in (_flat, _columns, _expanded):
            found = attempt(spec)
            if found is not None:
                return found
    elif size == 0 and strides == contiguous_strides(shape):
        return View(shape, "")
    tuples = ", ".join(f"({_dims(t)}{',' if len(t) == 1 else ''})" for t in (shape, strides))
    return View((size,), f".as_strided({tuples}, {layout.before})")


def _flat(spec: TensorSpec) -> View | None:
    """A slice of a flat base, reshaped and permuted where there are several dimensions."""
    shape, strides, before, size = spec.shape, spec.strides, spec.layout.before, spec.storage_elements
    if not shape:
        return View((size,), f"[{before}]")
    order = sorted(range(len(shape)), key=lambda axis: -strides[axis])
    dense = tuple(shape[axis] for axis in order)
    step = strides[order[-1]]
    if step < 1 or tuple(strides[axis] for axis in order) != tuple(step * s for s in contiguous_strides(dense)):
        return None
    back = sorted(range(len(order)), key=order.__getitem__)
    turn = "" if back == sorted(back) else (".t()" if len(shape) == 2 else f".permute({_dims(back)})")
    if spec.numel == size:
        return View(dense, turn)
    cut = _slice(before, spec.numel, step, size)
    return View((size,), f"[{cut}]" + (f".view({_dims(dense)})" if len(shape) > 1 else "") + turn)


def _columns(spec: TensorSpec) -> View | None:
    """Some columns of every row of a wider base."""
    shape, strides, before = spec.shape, spec.strides, spec.layout.before
    if len(shape) < 2 or strides[-1] < 1:
        return None
    rows, count, step, pitch = shape[:-1], shape[-1], strides[-1], strides[-2]
    whole = spec.storage_elements == math.prod(rows) * pitch and before + (count - 1) * step < pitch
    if not whole or strides[:-1] != tuple(pitch * stride for stride in contiguous_strides(rows)):
        return None
    lead = ":, " if len(shape) == 2 else "..., "
    return View((*rows, pitch), f"[{lead}{_slice(before, count, step, pitch)}]")


def _expanded(spec: TensorSpec) -> View | None:
    """A dense base with some dimensions expanded."""
    shape, strides = spec.shape, spec.strides
    kept = tuple(1 if stride == 0 else extent for extent, stride in zip(shape, strides, strict=True))
    dense = contiguous_strides(kept)
    if 0 not in strides or any(s not in (0, d) for s, d in zip(strides, dense, strict=True)):
        return None
    if any(extent == 1 and stride == 0 for extent, stride in zip(shape, strides, strict=True)):
        return None  # torch gives an expanded dimension of extent 1 another stride
    size, before = spec.storage_elements, spec.layout.before
    cut = "" if spec.span == size else f"[{_slice(before, spec.span, 1, size)}]"
    split = "" if len(shape) == 1 and not cut else f".view({_dims(kept)})"
    return View((size,), f"{cut}{split}.expand({_dims(shape)})")
