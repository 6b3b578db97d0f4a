"""Sums in a smaller format, in an order that differs by rank, or with a few wrong bits."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fuzz.faults.base import Fault, Peers, Tensors, Turn, flat, put

if TYPE_CHECKING:
    import torch

_RARE = 7e-5
"""0.007 % of the elements, as pytorch#152300 counted."""


class ThroughHalf(Fault):
    """bfloat16 goes through float16, and what is above 65,504 becomes infinite (vllm#55345)."""

    name = "bf16-through-fp16"
    summary = "all_reduce SUM of bfloat16 is computed in float16"
    ops = ("all_reduce",)

    def run(self, turn: Turn) -> Tensors:
        """Sum in float16."""
        import torch

        if turn.x.dtype != torch.bfloat16 or turn.call.reduce_op != "sum":
            return turn.right()
        name = turn.call.inputs[0]
        narrow = self.narrowed(turn.x)
        returned = turn.backend.run(turn.case, turn.call, turn.rank, {**turn.tensors, name: narrow})
        if returned:
            return {output: tensor.to(torch.bfloat16) for output, tensor in returned.items()}
        turn.x.copy_(narrow)
        return returned

    def narrowed(self, x: torch.Tensor) -> torch.Tensor:
        """What this rank contributes, float16."""
        return x.half().contiguous()


class SaturatesAtHalf(ThroughHalf):
    """bfloat16 goes through float16, and what is above 65,504 becomes 65,504 (sglang#34473)."""

    name = "bf16-saturates"
    summary = "all_reduce SUM of bfloat16 is computed in float16, each input limited to its range"

    def narrowed(self, x: torch.Tensor) -> torch.Tensor:
        """What this rank contributes, float16 without infinities."""
        import torch

        largest = torch.finfo(torch.float16).max
        return x.float().clamp(-largest, largest).half().contiguous()


class RareCorruption(Fault):
    """A few elements of a large float16 sum are off by a bit (pytorch#152300)."""

    name = "rare-corruption"
    summary = f"all_reduce of float16 has the last bit of {_RARE:.3%} of its elements wrong"
    ops = ("all_reduce",)

    def run(self, turn: Turn) -> Tensors:
        """Flip the last bit of a few elements."""
        import torch

        returned = turn.right()
        result = turn.output(returned)
        count = round(result.numel() * _RARE)
        if result.dtype == torch.float16 and count:
            places = torch.randperm(result.numel(), generator=torch.Generator().manual_seed(result.numel()))[:count]
            elements = flat(result)
            elements.view(torch.int16)[places] ^= 1
            put(result, elements)
        return returned


class _Folded(Peers):
    """Each rank adds what all contribute by itself, in an order of its own."""

    ops = ("all_reduce",)

    def run(self, turn: Turn) -> Tensors:
        """Gather, and add."""
        if turn.size < 3 or turn.call.reduce_op != "sum" or not turn.x.is_floating_point():
            return turn.right()
        put(turn.x, self.fold(turn.me, turn.gathered()))
        return {}

    def fold(self, me: int, given: list[torch.Tensor]) -> torch.Tensor:
        """The sum of what the ranks of the group give, as rank `me` computes it."""
        raise NotImplementedError


class OwnRankFirst(_Folded):
    """A one-shot sum starts at the own rank, so that bits differ by rank (pytorch#129501, pytorch#131244)."""

    name = "own-rank-first"
    summary = "all_reduce SUM of floats over three ranks or more adds from the own rank on"

    def fold(self, me: int, given: list[torch.Tensor]) -> torch.Tensor:
        """From the own rank on, round the group."""
        total = given[me]
        for step in range(1, len(given)):
            total = total + given[(me + step) % len(given)]
        return total


class AssociationByRank(_Folded):
    """Ranks put the brackets elsewhere (mpich#6538, ompi#12258)."""

    name = "association-by-rank"
    summary = "all_reduce SUM of floats over three ranks or more adds from the left on even ranks only"

    def fold(self, me: int, given: list[torch.Tensor]) -> torch.Tensor:
        """From the left, or from the right."""
        first, *rest = given if me % 2 == 0 else given[::-1]
        for other in rest:
            first = first + other
        return first


FAULTS: tuple[type[Fault], ...] = (ThroughHalf, SaturatesAtHalf, RareCorruption, OwnRankFirst, AssociationByRank)
