"""Tensors as MPI sees them: an address, counts, displacements and a datatype.

A contiguous tensor is a number of elements of a predefined type. A view is a number of rows (of dimension 0), described
by a derived datatype (MPI 4.1, section 5.1): vectors of vectors, down to one element. What a lazy conj or neg bit hides
is no memory, so such a tensor travels in a dense copy, and so does a view in a reduction, whose predefined operators
take predefined types only (section 6.9.2).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import torch

TYPES: Final = {
    "float32": "MPI_FLOAT",
    "float16": "MPIX_C_FLOAT16",
    "float64": "MPI_DOUBLE",
    "int32": "MPI_INT32_T",
    "int64": "MPI_INT64_T",
    "int16": "MPI_INT16_T",
    "int8": "MPI_INT8_T",
    "uint8": "MPI_UINT8_T",
    "uint16": "MPI_UINT16_T",
    "uint32": "MPI_UINT32_T",
    "uint64": "MPI_UINT64_T",
    "bool": "MPI_C_BOOL",
    "complex64": "MPI_C_FLOAT_COMPLEX",
    "complex128": "MPI_C_DOUBLE_COMPLEX",
}
"""MPI's predefined type of each dtype that it has."""

GAP: Final = 1
"""Elements between the parts of a buffer that has displacements of its own."""


def predefined(mpi: Any, dtype: torch.dtype) -> Any:
    """The predefined datatype of a dtype. Raises `TypeError` where MPI has none."""
    name = TYPES.get(str(dtype).removeprefix("torch."))
    if name is None:
        raise TypeError(f"MPI has no predefined datatype for {dtype}")
    if name == "MPIX_C_FLOAT16":
        return mpi.Datatype.fromcode("e")  # an extension, under a name of its own in each library
    return getattr(mpi, name.removeprefix("MPI_"))


class Buffers:
    """The buffers of one call. Datatypes and copies live until `finish` or `release`."""

    def __init__(self, mpi: Any) -> None:
        self._mpi = mpi
        self._types: list[Any] = []
        self._after: list[Callable[[], object]] = []
        self._kept: list[torch.Tensor] = []

    def finish(self) -> None:
        """After the call: write what travelled in a copy to where it belongs, and free the datatypes."""
        for each in self._after:
            each()
        self.release()

    def release(self) -> None:
        """Free the datatypes, which MPI keeps for as long as a call that has begun needs them."""
        for each in self._types:
            each.Free()
        self._types = []

    def afterwards(self, action: Callable[[], object]) -> None:
        """Have something done by `finish`."""
        self._after.append(action)

    def dense(self, tensor: torch.Tensor, *, written: bool = False) -> torch.Tensor:
        """The tensor itself where it is contiguous memory, else a copy; written: which is stored back afterwards."""
        if tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg():
            return tensor
        copy = load(tensor)
        if written:
            self.afterwards(lambda: store(tensor, copy))
        return copy

    def parts(
        self, tensor: torch.Tensor, lengths: Sequence[int], *, written: bool = False
    ) -> tuple[Any, list[int], list[int], Any]:
        """A tensor in parts of so many elements, of a view whole rows: memory, counts, displacements, datatype.

        `written`: the call writes it.
        """
        if tensor.is_conj() or tensor.is_neg():
            tensor = self.dense(tensor, written=written)
        self._kept.append(tensor)
        kind = predefined(self._mpi, tensor.dtype)
        row = 1
        if tensor.numel() and not tensor.is_contiguous():
            row = tensor.numel() // tensor.shape[0]
            kind = self._rows(tensor, kind)
        counts = [length // row for length in lengths]
        displacements = [0, *accumulate(counts)][:-1]
        extent = max(kind.Get_extent()[1], 1)
        # A derived type may reach beyond its extent, or end before it: the size only satisfies mpi4py's check.
        memory = self._mpi.memory.fromaddress(tensor.data_ptr(), sum(counts) * extent)
        return memory, counts, displacements, kind

    def whole(self, tensor: torch.Tensor, *, written: bool = False) -> list[Any]:
        """A tensor as one message: memory, count, datatype."""
        memory, (count,), _, kind = self.parts(tensor, [tensor.numel()], written=written)
        return [memory, count, kind]

    def absolute(self, tensor: torch.Tensor, *, written: bool = False) -> tuple[int, Any]:
        """A tensor as a count (0 or 1) and a datatype that holds its address."""
        memory, count, kind = self.whole(tensor, written=written)
        if not count:
            return 0, kind
        placed = kind.Create_hindexed([count], [memory.address]).Commit()
        self._types.append(placed)
        return 1, placed

    def _rows(self, tensor: torch.Tensor, kind: Any) -> Any:
        """A datatype for one row of dimension 0, whose extent is the way to the next one."""
        size = tensor.element_size()
        made = []
        for extent, stride in reversed(list(zip(tensor.shape[1:], tensor.stride()[1:], strict=True))):
            kind = kind.Create_hvector(extent, 1, stride * size)
            made.append(kind)
        row = kind.Create_resized(0, tensor.stride()[0] * size).Commit()
        for each in made:
            each.Free()
        self._types.append(row)
        return row


def load(tensor: torch.Tensor) -> torch.Tensor:
    """A dense copy of a tensor, without lazy bits: the exact bits, where torch's own negation of complex numbers turns
    -0 and the signs of NaN into others.
    """
    import torch

    copy = _stored(tensor).clone(memory_format=torch.contiguous_format)
    _flip(copy, conj=tensor.is_conj(), neg=tensor.is_neg())
    return copy


def store(tensor: torch.Tensor, values: torch.Tensor) -> None:
    """Write values, contiguous and as many, to a tensor, so that `load` gives them."""
    copy = values.clone().reshape(tensor.shape)
    _flip(copy, conj=tensor.is_conj(), neg=tensor.is_neg())
    _stored(tensor).copy_(copy)


def _stored(tensor: torch.Tensor) -> torch.Tensor:
    """What lies in memory: the tensor without its lazy bits."""
    import torch

    tensor = tensor.conj() if tensor.is_conj() else tensor
    return torch._neg_view(tensor) if tensor.is_neg() else tensor


def _flip(values: torch.Tensor, *, conj: bool, neg: bool) -> None:
    """Flip the signs that lazy bits stand for, in dense memory."""
    import torch

    if values.is_complex():
        words = torch.view_as_real(values).view(getattr(torch, f"int{4 * values.element_size()}"))
        sign = torch.iinfo(words.dtype).min
        words[..., 0] ^= sign if neg else 0
        words[..., 1] ^= sign if neg != conj else 0
    elif neg and values.is_floating_point():
        words = values.view(getattr(torch, f"int{8 * values.element_size()}"))
        words ^= torch.iinfo(words.dtype).min
    elif neg:
        values.neg_()


def flat(lengths: Sequence[int], like: torch.Tensor, *, gaps: bool) -> tuple[torch.Tensor, list[int]]:
    """A new buffer for parts of so many elements, and where each begins."""
    gap = GAP if gaps else 0
    starts = [0, *accumulate(length + gap for length in lengths)]
    return like.new_zeros(starts[-1]), starts[:-1]
