"""Views that are taken for dense blocks of memory, or whose copies are lost."""

from __future__ import annotations

from typing import TYPE_CHECKING

from corpus.case import contiguous_strides
from fuzz.faults.base import Fault, Tensors, Turn

if TYPE_CHECKING:
    import torch


def block(x: torch.Tensor) -> torch.Tensor | None:
    """The dense block of memory that begins at a view's first element, in the view's shape; None where the storage ends
    before it.
    """
    if x.storage_offset() + x.numel() > x.untyped_storage().nbytes() // x.element_size():
        return None
    return x.as_strided(x.shape, contiguous_strides(tuple(x.shape))).clone()


def _dense_in_memory(x: torch.Tensor) -> bool:
    """Whether the view's elements fill one block of memory, in whatever order."""
    return 1 + sum((extent - 1) * stride for extent, stride in zip(x.shape, x.stride(), strict=True)) == x.numel()


class _TakenForDense(Fault):
    """The input is read as if it were dense, where `wrong` says so."""

    def wrong(self, x: torch.Tensor) -> bool:
        """Whether this view is misread."""
        return not x.is_contiguous()

    def run(self, turn: Turn) -> Tensors:
        """Contribute the block of memory instead of the view."""
        stored = block(turn.x) if self.wrong(turn.x) else None
        return turn.right() if stored is None else turn.contribute(stored)


class GatherOfAColumn(_TakenForDense):
    """A gather of a column sends what lies beside it (pytorch#158903, pytorch#159548)."""

    name = "gather-of-a-column"
    summary = "gather reads a view as if it were a dense block of memory"
    ops = ("gather",)


class ReduceScatterOfGaps(_TakenForDense):
    """reduce_scatter_tensor of every second element reduces the elements between (pytorch#130251, pytorch#128066)."""

    name = "reduce-scatter-of-gaps"
    summary = "reduce_scatter_tensor reads a view with gaps as if it were a dense block of memory"
    ops = ("reduce_scatter_tensor",)

    def wrong(self, x: torch.Tensor) -> bool:
        """A view with gaps between its elements."""
        return not _dense_in_memory(x)


class UnmovedDimension(_TakenForDense):
    """reduce_scatter along another dimension hands on the tensor whose dimensions were not moved (vllm#23648)."""

    name = "unmoved-dimension"
    summary = "reduce_scatter_tensor of a transposed view works on the tensor that was not transposed"
    ops = ("reduce_scatter_tensor",)

    def wrong(self, x: torch.Tensor) -> bool:
        """A dense tensor with its dimensions in another order."""
        return not x.is_contiguous() and _dense_in_memory(x)


class GatherInMemoryOrder(_TakenForDense):
    """all_gather of a channels_last tensor sends its elements in the order of memory (pytorch#163483)."""

    name = "gather-in-memory-order"
    summary = "all_gather sends the elements of a channels_last tensor in the order of memory"
    ops = ("all_gather",)

    def wrong(self, x: torch.Tensor) -> bool:
        """Four dimensions, the channels last in memory."""
        import torch

        return x.dim() == 4 and not x.is_contiguous() and x.is_contiguous(memory_format=torch.channels_last)


class ContiguousCopyDropped(Fault):
    """`all_reduce(x.contiguous()); return x`: the copy is reduced, and x comes back (Megatron-LM#5337)."""

    name = "contiguous-copy-dropped"
    summary = "all_reduce of a view reduces a contiguous copy and gives back the view"
    ops = ("all_reduce",)

    def run(self, turn: Turn) -> Tensors:
        """Reduce a copy, and forget it."""
        if turn.x.is_contiguous():
            return turn.right()
        name = turn.call.inputs[0]
        copied = {**turn.tensors, name: turn.x.contiguous()}
        returned = turn.backend.run(turn.case, turn.call, turn.rank, copied)
        return dict.fromkeys(returned, turn.x)


class GapsAreZeros(Fault):
    """An all-gather of a datatype with gaps gives zeros (ompi#11510)."""

    name = "gaps-are-zeros"
    summary = "all_gather_into_tensor of a view with gaps gives zeros"
    ops = ("all_gather_into_tensor",)

    def run(self, turn: Turn) -> Tensors:
        """Contribute zeros."""
        return turn.right() if _dense_in_memory(turn.x) else turn.contribute(turn.x.new_zeros(turn.x.shape))


FAULTS: tuple[type[Fault], ...] = (
    GatherOfAColumn,
    ReduceScatterOfGaps,
    UnmovedDimension,
    GatherInMemoryOrder,
    ContiguousCopyDropped,
    GapsAreZeros,
)
