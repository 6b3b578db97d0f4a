"""The data of a case as torch expressions of `rank`: literal values, a formula, or a seeded generator."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from corpus.case import CONTIGUOUS, Case, Tensor, TensorSpec
from corpus.dtypes import DTYPES, DType, Kind
from corpus.payload import PERIOD, SPARSE_RANKS, Bits, exact_limit, index_offset, payload, special_values, word_type
from fuzz.repro.code import ReproError, dtype_argument, literal, view

SMALL = 24
"""Elements up to which a tensor's data is written out."""
WRITTEN = 48
"""Elements up to which the data of all ranks together is written out."""
MAX_ORDERS = 4
"""Ranks up to which a script compares with every order of additions."""

_MODULI = (8191, 4093, 2039, 1021, 509, 251, 127, 61, 31, 13, 7, 5, 3)


def simplified(case: Case) -> Case:
    """The case with data whose reduction is exact, wherever a script could not name every legal result otherwise."""
    inexact: set[str] = set()
    for call in case.program:
        if call.reduce_op in ("sum", "avg", "premul_sum") and len(case.ranks(call)) > MAX_ORDERS:
            inexact.update(call.inputs)
    inexact |= {tensor.data.tensor for tensor in case.tensors if tensor.data is not None and tensor.name in inexact}
    inexact |= {tensor.name for tensor in case.tensors if tensor.data is not None and tensor.data.tensor in inexact}
    return replace(case, tensors=tuple(_exact(tensor) if tensor.name in inexact else tensor for tensor in case.tensors))


def _exact(tensor: Tensor) -> Tensor:
    def change(spec: TensorSpec) -> TensorSpec:
        return replace(spec, payload="index") if DTYPES[spec.dtype].format is not None else spec

    return replace(
        tensor, spec=change(tensor.spec), overrides=tuple((rank, change(spec)) for rank, spec in tensor.overrides)
    )


def is_exact(case: Case, names: Sequence[str]) -> bool:
    """Whether any order of additions of these tensors' data over all ranks gives the same sum."""
    specs = [spec for tensor, spec in case.specs() if tensor.name in names]
    return all(spec.payload in ("index", "exact") or DTYPES[spec.dtype].format is None for spec in specs)


def has_specials(case: Case, names: Sequence[str]) -> bool:
    """Whether NaN, infinities and signed zeros may be among these tensors' data."""
    specs = [spec for tensor, spec in case.specs() if tensor.name in names]
    return any(spec.payload == "special" and DTYPES[spec.dtype].kind in (Kind.FLOAT, Kind.COMPLEX) for spec in specs)


class Data:
    """Writes the tensors of one case. With `faithful`, long data is the fuzzer's own, by the functions in `helpers`.

    `made` writes a tensor as a rank (an expression) made it: for those that take their data from it.
    """

    def __init__(self, case: Case, *, faithful: bool, made: Callable[[str, str], str]) -> None:
        self.case = case
        self.faithful = faithful
        self._made = made
        self.generators: dict[tuple[str, str], None] = {}
        """(payload kind, dtype) of every function that the expressions call."""
        self._any_nan = all(call.reduce_op is not None for call in case.program)

    def tensor(self, name: str, ranks: Sequence[int]) -> tuple[str, str]:
        """A tensor on ranks that share one spec: its base ("" where it is no view), and the tensor over `base`."""
        spec = self.case.tensor(name).on(ranks[0])
        if spec.dtype == "float4_e2m1fn_x2":
            raise ReproError(f"tensor {name}: torch fills no {spec.dtype}")
        if spec.layout.neg and DTYPES[spec.dtype].itemsize == 1 and DTYPES[spec.dtype].kind is Kind.FLOAT:
            raise ReproError(f"tensor {name}: torch negates no {spec.dtype}")
        how = view(spec)
        plain = not how.suffix and not spec.layout.conj and not spec.layout.neg
        if plain and (spec.payload != "poison" or self.faithful):
            return "", self._shaped(name, ranks, spec)
        if plain:
            return "", self._guard(name, spec, how.base)
        if spec.overlaps:
            return self._overlapping(name, ranks, spec), how.of("base", spec)
        filled = how.of("base", spec)
        if spec.numel and (spec.payload != "poison" or self.faithful):
            filled += f".copy_({self._shaped(name, ranks, spec)})"
        return self._guard(name, spec, how.base), filled

    def _shaped(self, name: str, ranks: Sequence[int], spec: TensorSpec) -> str:
        """The data in the spec's shape, contiguous."""
        if not spec.numel:
            return f"torch.empty({list(spec.shape)}{dtype_argument(spec.dtype, '0.')})"
        dtype = DTYPES[spec.dtype]
        if self.case.tensor(name).data is not None:
            return self._taken(name, ranks, spec)
        written = spec.numel <= SMALL and spec.numel * len(ranks) <= WRITTEN and spec.payload != "poison"
        if written and not (spec.payload == "index" and self._formula(name, dtype, spec.numel) and len(ranks) > 1):
            tables = {rank: payload(self.case, name, rank).bits() for rank in ranks}
            shape = spec.shape if len(spec.shape) < 3 else (spec.numel,)
            return literal(tables, dtype, shape, any_nan=self._any_nan) + (
                "" if shape == spec.shape else _reshape(spec.shape)
            )
        flat = self._flat(name, dtype, spec.numel, str(spec.payload))
        if spec.shape == (spec.numel,):
            return flat
        return (flat if flat.endswith(")") and " " not in _outside(flat) else f"({flat})") + _reshape(spec.shape)

    def _taken(self, name: str, ranks: Sequence[int], spec: TensorSpec) -> str:
        """Elements of another tensor, or of another rank's, dense and in memory of their own."""
        data = self.case.tensor(name).data
        assert data is not None
        size, dtype = self.case.world.size, DTYPES[spec.dtype]
        origins = [self.case.tensor(data.tensor).on((rank + data.shift) % size) for rank in ranks]
        text = self._made(data.tensor, f"(rank + {data.shift}) % WORLD" if data.shift else "rank")
        if any(origin.layout.conj or origin.layout.neg for origin in origins):
            text += ".resolve_conj().resolve_neg()"
        whole = all(origin.shape == spec.shape and origin.layout == CONTIGUOUS for origin in origins)
        if not whole:
            text += ".reshape(-1)" + f"[{data.start or ''}:{data.start + spec.numel}]"
        if data.exponent:
            factor = 2.0**data.exponent
            narrow = dtype.itemsize == 1
            text = f"({text}.float() * {factor}).to(torch.{dtype.name})" if narrow else f"{text} * {factor}"
        elif not whole:
            text += ".clone()"
        if whole or len(spec.shape) == 1:
            return text
        return (f"({text})" if data.exponent else text) + _reshape(spec.shape)

    def _formula(self, name: str, dtype: DType, numel: int) -> bool:
        """Whether "index" data is rank + 1 + position * world size."""
        room = exact_limit(dtype) // self.case.world.size
        longest = min(numel, PERIOD) + index_offset(name)
        return dtype.components == 1 and longest * self.case.world.size + 1 <= room

    def _flat(self, name: str, dtype: DType, numel: int, kind: str) -> str:
        """`numel` elements of data in one dimension."""
        if self.faithful:
            self.generators[kind, dtype.name] = None
            return f'{kind}_{dtype.name}("{name}", rank, {numel})'
        if kind in ("index", "exact") and dtype.kind is not Kind.BOOL:
            return self._index(name, dtype, numel) or self._random(name, dtype, numel, kind)
        return self._random(name, dtype, numel, kind)

    def _index(self, name: str, dtype: DType, numel: int) -> str | None:
        """Values that differ by rank and position, and whose sum over the ranks is exact."""
        size = self.case.world.size
        room = exact_limit(dtype) // size
        first = index_offset(name)
        count = first + numel * dtype.components
        steps = f"torch.arange({f'{first}, ' if first else ''}{count})"
        if count * size + 1 > room or count > 1 << 15:
            modulus = next((m for m in _MODULI if m * size <= room), None)
            if modulus is None:
                return None
            steps += f" % {modulus}"
        elif dtype.name == "float32":
            return f"{steps[:-1]}.0) * WORLD + rank + 1"
        formula = f"{steps} * WORLD + rank + 1"
        if dtype.name == "float32":
            return f"({formula}).float()"
        if dtype.components == 2:
            real = {2: "float16", 4: "float32", 8: "float64"}[dtype.word]
            return f"torch.view_as_complex(({formula}).to(torch.{real}).view(-1, 2))"
        return formula if dtype.name == "int64" else f"({formula}).to(torch.{dtype.name})"

    def _random(self, name: str, dtype: DType, numel: int, kind: str) -> str:
        """Seeded random data of the payload's kind."""
        which = [tensor.name for tensor in self.case.tensors].index(name)
        seed = "rank" if which == 0 else f"{which * self.case.world.size} + rank"
        device = '"cuda"' if self.case.tensor(name).spec.memory == "cuda" else ""
        generator = f"generator=torch.Generator({device}).manual_seed({seed})"
        cast = "" if dtype.name == "int64" else f".to(torch.{dtype.name})"
        if dtype.kind is Kind.BOOL:
            return f"torch.randint(2, ({numel},), {generator}).bool()"
        if dtype.kind is Kind.OPAQUE:
            return f"torch.randint(256, ({numel},), {generator}).byte().view(torch.{dtype.name})"
        if kind == "special":
            edges = self._edges(dtype)
            return f"{edges}[torch.randint({len(special_values(dtype))}, ({numel},), {generator})]"
        if dtype.format is None:
            bits = 8 * dtype.itemsize
            low, high = (0, f"2**{bits}") if dtype.kind is Kind.UNSIGNED and bits < 64 else (f"-2**{bits - 1}", "")
            high = high or (f"2**{bits - 1}" if bits < 64 else "2**63 - 1")
            if kind in ("index", "exact"):
                low, high = 0, str(max(exact_limit(dtype) // self.case.world.size, 1) + 1)
            return f"torch.randint({low}, {high}, ({numel},), {generator}){cast}"
        if kind in ("index", "exact"):
            room = max(exact_limit(dtype) // self.case.world.size, 1)
            return f"torch.randint({room + 1}, ({numel},), {generator}).to(torch.{dtype.name})"
        native = dtype.name in ("float32", "float64", "complex64", "complex128")
        wanted = dtype.name if native else "complex64" if dtype.components == 2 else "float32"
        values = f"torch.randn({numel}, {generator}{dtype_argument(wanted, '0.')}){'' if native else cast}"
        if kind == "sparse" and self.case.world.size > SPARSE_RANKS:
            return f"{values} * ((torch.arange({numel}) + rank) % WORLD < {SPARSE_RANKS})"
        return values

    def _edges(self, dtype: DType) -> str:
        """A table of the dtype's edge values."""
        words = np.array(special_values(dtype), dtype=word_type(dtype))
        if dtype.components == 2:
            words = np.stack([words, np.roll(words, 1)], axis=1)
        return literal({0: words}, dtype, (len(words),), any_nan=self._any_nan)

    def _guard(self, name: str, spec: TensorSpec, shape: tuple[int, ...]) -> str:
        """The base storage before the data is put into the view: what the view does not reach stays so."""
        dtype = DTYPES[spec.dtype]
        if self.faithful:
            flat = self._flat(f"{name}/guard", dtype, math.prod(shape), "wide")
            return flat if len(shape) == 1 else flat + _reshape(shape)
        sentinel = {
            Kind.UNSIGNED: f"{min((1 << (8 * dtype.word)) - 1, 255)} - rank",
            Kind.BOOL: "rank % 2 == 0",
            Kind.OPAQUE: "2.0**rank",
            Kind.SIGNED: "-1 - rank",
        }.get(dtype.kind, "-1.0 - rank")
        inferred = dtype.name in ("float32", "int64", "bool")
        return f"torch.full({_tuple(shape)}, {sentinel}{'' if inferred else f', dtype=torch.{dtype.name}'})"

    def _overlapping(self, name: str, ranks: Sequence[int], spec: TensorSpec) -> str:
        """The base storage of a view that overlaps itself, with the data in it."""
        dtype = DTYPES[spec.dtype]
        if spec.span <= SMALL and not self.faithful:
            tables = {rank: _stored(payload(self.case, name, rank).bits(), spec, dtype) for rank in ranks}
            middle = literal(tables, dtype, (spec.span,), any_nan=self._any_nan)
        else:
            middle = self._flat(name, dtype, spec.span, str(spec.payload))
        around = [(spec.layout.before, 0), (spec.layout.after, 2)]
        parts = [middle]
        for count, place in around:
            if count:
                parts.insert(place, self._guard(name, spec, (count,)))
        return middle if len(parts) == 1 else f"torch.cat([{', '.join(parts)}])"


def _stored(logical: Bits, spec: TensorSpec, dtype: DType) -> Bits:
    """The span of base storage that holds a view's elements (zeros between them)."""
    stored = np.zeros((spec.span, *logical.shape[1:]), dtype=word_type(dtype))
    offsets = np.zeros(spec.shape, dtype=np.int64)
    for axis, (extent, stride) in enumerate(zip(spec.shape, spec.strides, strict=True)):
        steps = np.arange(extent, dtype=np.int64) * stride
        offsets += steps.reshape([-1 if other == axis else 1 for other in range(len(spec.shape))])
    stored[offsets.reshape(-1)] = logical
    return stored


def _tuple(shape: Sequence[int]) -> str:
    return f"({', '.join(map(str, shape))}{',' if len(shape) == 1 else ''})"


def _reshape(shape: Sequence[int]) -> str:
    return f".reshape({', '.join(map(str, shape))})" if shape else ".reshape(())"


def _outside(text: str) -> str:
    """What of an expression stands outside all brackets."""
    depth, kept = 0, []
    for character in text:
        depth -= character in ")]}"
        if depth == 0:
            kept.append(character)
        depth += character in "([{"
    return "".join(kept)
