"""The tensors of a case on one rank: base storage, view, and what they were filled with.

Oracles look at raw words (unsigned integers) so that nothing is rounded, flushed or canonicalised on the way.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from corpus.case import Case, TensorSpec
from corpus.dtypes import DTYPES, DType, Kind
from corpus.meaning import holders
from corpus.payload import Bits, guard, payload, word_type

_TORCH_WORDS = {1: torch.uint8, 2: torch.uint16, 4: torch.uint32, 8: torch.uint64}


def torch_dtype(name: str) -> torch.dtype:
    """The torch dtype of a name in `corpus.dtypes`."""
    dtype = getattr(torch, name)
    assert isinstance(dtype, torch.dtype)
    return dtype


def flip_lazy(bits: Bits, spec: TensorSpec) -> Bits:
    """Turn stored words into logical ones, or back: applies torch's lazy conj and neg bits (an involution)."""
    dtype = DTYPES[spec.dtype]
    if not (spec.layout.conj or spec.layout.neg):
        return bits
    if dtype.kind is Kind.SIGNED:
        return np.negative(bits)
    sign = np.array(1 << (8 * dtype.word - 1), dtype=word_type(dtype))
    flips = np.zeros(dtype.components, dtype=word_type(dtype))
    if spec.layout.neg:
        flips ^= sign
    if spec.layout.conj:
        flips[1] ^= sign
    flipped: Bits = bits ^ (flips if dtype.components == 2 else flips[0])
    return flipped


def words_of(tensor: torch.Tensor, dtype: DType) -> Bits:
    """The words of a dense 1-D tensor: shape (n,), or (n, 2) for complex numbers. Shares memory on a CPU."""
    flat = tensor.view(_TORCH_WORDS[dtype.word]).detach().cpu().numpy()
    return flat.reshape(-1, 2) if dtype.components == 2 else flat


def strided(words: Bits, spec: TensorSpec) -> npt.NDArray[Any]:
    """The view of a base storage's words that a spec describes: shape `spec.shape`, plus (2,) for complex numbers."""
    step = words.strides[0]
    tail = words.shape[1:]
    return np.lib.stride_tricks.as_strided(
        words[spec.layout.before :],
        shape=spec.shape + tail,
        strides=tuple(stride * step for stride in spec.strides) + words.strides[1:],
    )


class Buffer:
    """One tensor on one rank, filled with its payload and surrounded by its guard.

    `base` is the whole base storage as a 1-D tensor of the dtype; `view` is what the library is given.
    A tensor that the library returns has neither until `returned` is set. `saved` holds the base storage's words as
    they were before a call of the program, by its index, where that call overwrites what an earlier one used.
    """

    def __init__(self, case: Case, name: str, rank: int, device: torch.device) -> None:
        self.name = name
        self.rank = rank
        self.spec = case.tensor(name).on(rank)
        self.dtype = DTYPES[self.spec.dtype]
        self.returned: torch.Tensor | None = None
        self.saved: dict[int, Bits] = {}
        self.base: torch.Tensor | None = None
        self.view: torch.Tensor | None = None
        if self.spec.payload is None:
            return
        if self.spec.memory == "cpu":
            device = torch.device("cpu")
        self.payload = payload(case, name, rank)
        self.guard = guard(case, name, rank)
        self.base = torch.empty(self.spec.storage_elements, dtype=torch_dtype(self.spec.dtype), device=device)
        if device.type == "cpu":
            self.write_initial(words_of(self.base, self.dtype))
        else:
            filled = torch.empty_like(self.base, device="cpu")
            self.write_initial(words_of(filled, self.dtype))
            self.base.copy_(filled)
        view = torch.as_strided(self.base, self.spec.shape, self.spec.strides, self.spec.layout.before)
        if self.spec.layout.conj:
            view = view.conj()
        if self.spec.layout.neg:
            view = torch._neg_view(view)
        self.view = view

    def write_initial(self, words: Bits) -> None:
        """Write the base storage as it is before the program: guard outside the view, payload inside."""
        spec = self.spec
        before, end = spec.layout.before, spec.layout.before + spec.span
        if self.spec.is_contiguous:
            words[:before] = self.guard.bits(0, before)
            words[end:] = self.guard.bits(end, len(words) - end)
        else:
            self.guard.write(words)
        if spec.numel == 0:
            return
        if self.spec.is_contiguous and not (spec.layout.conj or spec.layout.neg):
            self.payload.write(words[before:end])
        else:
            logical = flip_lazy(self.payload.bits(), spec)
            strided(words, spec)[...] = logical.reshape(spec.shape + logical.shape[1:])

    @property
    def tensor(self) -> torch.Tensor | None:
        """What a call is given: the view, or the tensor that an earlier call returned."""
        return self.returned if self.view is None else self.view

    def save(self, index: int) -> None:
        """Keep what the base storage holds before call `index` overwrites it."""
        if self.base is not None:
            self.saved[index] = self.words().copy()

    def words(self, call: int | None = None) -> Bits:
        """The base storage's words as they are now (shared memory on a CPU, a copy from a GPU), or before a call."""
        assert self.base is not None
        return words_of(self.base, self.dtype) if call is None else self.saved[call]

    def bits(self, call: int | None = None) -> Bits:
        """The logical elements as they are now, or before a call, row-major, as words: shape (numel,) or (numel, 2).

        Of a returned tensor: its elements whatever its strides; its shape and dtype are the numeric oracle's.
        """
        if self.spec.payload is None:
            assert self.returned is not None
            dense = self.returned.detach().resolve_conj().resolve_neg().contiguous().reshape(-1)
            return words_of(dense, self.dtype)
        words = self.words(call)
        spec = self.spec
        if spec.is_contiguous:
            stored = words[spec.layout.before : spec.layout.before + spec.numel]
        else:
            stored = strided(words, spec).reshape((spec.numel, *words.shape[1:]))
        return flip_lazy(stored, spec)


def build(case: Case, rank: int, device: torch.device) -> dict[str, Buffer]:
    """Build every tensor that `rank` (global) holds in the case, by name."""
    return {
        tensor.name: Buffer(case, tensor.name, rank, device)
        for tensor in case.tensors
        if rank in holders(case, tensor.name)
    }
