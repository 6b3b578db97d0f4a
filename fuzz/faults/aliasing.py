"""Inputs that change, outputs that share memory, and buffers that are used twice or not written back."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fuzz.faults.base import Fault, OfInPlace, OfReturned, Peers, Tensors, Turn, flat, put

if TYPE_CHECKING:
    import torch

STAGING = 4096
"""Bytes of the staging buffer of the faults that have one."""


class InputClobbered(Fault):
    """A gather uses its input as scratch (ompi#2824, mpich#6893: buffers that are not outputs change)."""

    name = "input-clobbered"
    summary = "all_gather leaves the last element of its input negated"
    ops = ("all_gather",)

    def run(self, turn: Turn) -> Tensors:
        """Write to the input afterwards."""
        returned = turn.right()
        x = turn.x.reshape(-1)
        if x.numel() and x.dtype.is_signed:
            x[-1:].neg_()
        return returned


class MutatesInput(OfReturned):
    """An operator that is declared functional reduces in place all the same (vllm#39844, vllm#39507)."""

    name = "mutates-input"
    summary = "an all_reduce that returns a new tensor leaves the result in its input too"

    def run(self, turn: Turn) -> Tensors:
        """Write the result to the input too."""
        returned = turn.right()
        turn.x.copy_(turn.output(returned))
        return returned


class AliasedWhenAlone(OfReturned):
    """A world of one returns the input itself (vllm#7755)."""

    name = "aliased-when-alone"
    summary = "in a world of one rank, all_reduce returns its input and no new tensor"

    def run(self, turn: Turn) -> Tensors:
        """Return the input."""
        return {turn.call.outputs[0]: turn.x} if turn.size == 1 else turn.right()


class AliasedAtSomeSizes(OfReturned):
    """The output is the input on the path that some sizes take (vllm#9061)."""

    name = "aliased-at-some-sizes"
    summary = "all_reduce of a multiple of 4 elements reduces its input in place and returns it"

    def run(self, turn: Turn) -> Tensors:
        """Reduce in place."""
        returned = turn.right()
        if turn.x.numel() % 4:
            return returned
        return {turn.call.outputs[0]: turn.x.copy_(turn.output(returned))}


class StagingNotWrittenBack(OfInPlace):
    """An input that is larger than the staging buffer is reduced, and not copied back (sglang#27123)."""

    name = "staging-not-written-back"
    summary = f"all_reduce of more than {STAGING:,} bytes does not copy its result back"

    def run(self, turn: Turn) -> Tensors:
        """Reduce a copy."""
        if turn.x.numel() * turn.x.element_size() <= STAGING:
            return turn.right()
        before = flat(turn.x)
        returned = turn.right()
        put(turn.x, before)
        return returned


class StagingTooSmall(Fault):
    """An input that is larger than the staging buffer raises (sglang#24548)."""

    name = "staging-too-small"
    summary = f"all_reduce of more than {STAGING:,} bytes raises"
    ops = ("all_reduce",)

    def run(self, turn: Turn) -> Tensors:
        """Raise, as a check of sizes does."""
        size = turn.x.numel() * turn.x.element_size()
        if size > STAGING:
            raise RuntimeError(f"The size of the input ({size}) exceeds that of the staging buffer ({STAGING})")
        return turn.right()


class OwnContributionOverwritten(Peers):
    """What the root receives lands on its own contribution, from 64 KiB on (ompi#2824)."""

    name = "own-contribution-overwritten"
    summary = "reduce of 65,536 bytes or more overwrites the root's contribution with the next rank's"
    ops = ("reduce",)

    def run(self, turn: Turn) -> Tensors:
        """Let the root contribute what the next rank does."""
        if turn.x.numel() * turn.x.element_size() >= 65_536:
            received = turn.gathered()[(turn.me + 1) % turn.size]
            if turn.me == turn.call.root:
                put(turn.x, received)
        return turn.right()


class ReceiveBufferAdded(Fault):
    """Above 2 KiB the result depends on what the receive buffer held (mpich#6893)."""

    name = "receive-buffer-added"
    summary = "reduce_scatter_tensor to more than 2,048 bytes adds what the output held to the result"
    ops = ("reduce_scatter_tensor",)

    def run(self, turn: Turn) -> Tensors:
        """Add what was there."""
        out = turn.output({})
        held = flat(out)
        returned = turn.right()
        if out.numel() * out.element_size() > 2048:
            put(out, flat(out) + held)
        return returned


class SharedScratch(OfReturned):
    """Results are views of one scratch buffer, so that the next call overwrites them (vllm 0.32 reduce_scatter)."""

    name = "shared-scratch"
    summary = "all_reduce returns a view of a scratch buffer that the next call uses too"

    def __init__(self) -> None:
        self._scratch: torch.Tensor | None = None

    def run(self, turn: Turn) -> Tensors:
        """Return a view of the scratch buffer."""
        result = turn.output(turn.right())
        scratch = self._scratch
        if scratch is None or scratch.dtype != result.dtype or scratch.numel() < result.numel():
            scratch = self._scratch = result.new_empty(result.numel())
        view = scratch[: result.numel()].view(result.shape)
        return {turn.call.outputs[0]: view.copy_(result)}


FAULTS: tuple[type[Fault], ...] = (
    InputClobbered,
    MutatesInput,
    AliasedWhenAlone,
    AliasedAtSomeSizes,
    StagingNotWrittenBack,
    StagingTooSmall,
    OwnContributionOverwritten,
    ReceiveBufferAdded,
    SharedScratch,
)
