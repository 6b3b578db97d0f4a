"""The element types a tensor can have: names as torch spells them, sizes, and bit formats.

Nothing here needs torch or a float unit: payloads are built from bits, so that float8 and bfloat16 are first-class.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    """What the bits of an element mean."""

    FLOAT = "float"
    COMPLEX = "complex"
    SIGNED = "signed"
    UNSIGNED = "unsigned"
    BOOL = "bool"
    OPAQUE = "opaque"
    """Moved but never reduced: packed or scale-only formats."""


@dataclass(frozen=True, slots=True)
class FloatFormat:
    """A binary floating-point format: 1 sign bit, `exponent` bits, `mantissa` bits, in that order.

    `infinity`: exponent all ones and mantissa zero is an infinity, other mantissas are NaN (IEEE 754).
    Otherwise the format is one of the OCP "fn" kind: exponent all ones holds numbers too, and NaN is the one code
    `nan` (and its negative, unless `nan` is the code of minus zero, as in the "fnuz" kind).
    """

    exponent: int
    mantissa: int
    bias: int
    infinity: bool = True
    nan: int | None = None

    @property
    def bits(self) -> int:
        """Width of one element in bits."""
        return 1 + self.exponent + self.mantissa


@dataclass(frozen=True, slots=True)
class DType:
    """One element type. `itemsize` in bytes; `format` of each (real) component for floats and complex numbers."""

    name: str
    kind: Kind
    itemsize: int
    format: FloatFormat | None = None

    @property
    def components(self) -> int:
        """2 for complex numbers (real, imaginary), else 1."""
        return 2 if self.kind is Kind.COMPLEX else 1

    @property
    def word(self) -> int:
        """Bytes of one component."""
        return self.itemsize // self.components


_F64 = FloatFormat(11, 52, 1023)
_F32 = FloatFormat(8, 23, 127)
_F16 = FloatFormat(5, 10, 15)
_BF16 = FloatFormat(8, 7, 127)

# In the order in which a person wants a failure shrunk.
_ALL = (
    DType("float32", Kind.FLOAT, 4, _F32),
    DType("bfloat16", Kind.FLOAT, 2, _BF16),
    DType("float16", Kind.FLOAT, 2, _F16),
    DType("float64", Kind.FLOAT, 8, _F64),
    DType("int32", Kind.SIGNED, 4),
    DType("int64", Kind.SIGNED, 8),
    DType("int16", Kind.SIGNED, 2),
    DType("int8", Kind.SIGNED, 1),
    DType("uint8", Kind.UNSIGNED, 1),
    DType("uint16", Kind.UNSIGNED, 2),
    DType("uint32", Kind.UNSIGNED, 4),
    DType("uint64", Kind.UNSIGNED, 8),
    DType("bool", Kind.BOOL, 1),
    DType("complex64", Kind.COMPLEX, 8, _F32),
    DType("complex128", Kind.COMPLEX, 16, _F64),
    DType("complex32", Kind.COMPLEX, 4, _F16),
    DType("float8_e4m3fn", Kind.FLOAT, 1, FloatFormat(4, 3, 7, infinity=False, nan=0x7F)),
    DType("float8_e5m2", Kind.FLOAT, 1, FloatFormat(5, 2, 15)),
    DType("float8_e4m3fnuz", Kind.FLOAT, 1, FloatFormat(4, 3, 8, infinity=False, nan=0x80)),
    DType("float8_e5m2fnuz", Kind.FLOAT, 1, FloatFormat(5, 2, 16, infinity=False, nan=0x80)),
    DType("float8_e8m0fnu", Kind.OPAQUE, 1),
    DType("float4_e2m1fn_x2", Kind.OPAQUE, 1),
)

DTYPES: dict[str, DType] = {dtype.name: dtype for dtype in _ALL}
