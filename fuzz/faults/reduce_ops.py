"""Reduce ops that are mistaken for others, and contributions that are left out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar

from fuzz.faults.base import Fault, Tensors, Turn, put


class MissingContribution(Fault):
    """The last rank of three or more contributes nothing (torchcomms#477: the root contributes zeros)."""

    name = "missing-contribution"
    summary = "all_reduce SUM over three ranks or more leaves out the last rank"
    ops = ("all_reduce",)

    def run(self, turn: Turn) -> Tensors:
        """Contribute zeros from the last rank."""
        if turn.size < 3 or turn.me != turn.size - 1 or turn.call.reduce_op != "sum":
            return turn.right()
        return turn.contribute(turn.x.new_zeros(turn.x.shape))


class RootContributesZeros(Fault):
    """The first rank's input is taken for its output, and counts as zeros (torchcomms#477)."""

    name = "root-contributes-zeros"
    summary = "reduce_scatter SUM leaves out the first rank"
    ops = ("reduce_scatter",)

    def run(self, turn: Turn) -> Tensors:
        """Contribute zeros from the first rank."""
        if turn.me or turn.call.reduce_op != "sum":
            return turn.right()
        silent = {name: turn.tensors[name].new_zeros(turn.tensors[name].shape) for name in turn.call.inputs}
        return turn.backend.run(turn.case, turn.call, turn.rank, {**turn.tensors, **silent})


class _Mistaken(Fault):
    """One reduce op is taken for another."""

    taken: ClassVar[Mapping[str, str]]

    def run(self, turn: Turn) -> Tensors:
        """Ask for the other one."""
        reduce_op = str(turn.call.reduce_op)
        return turn.right(replace(turn.call, reduce_op=self.taken.get(reduce_op, reduce_op)))


class AverageIsSum(_Mistaken):
    """AVG returns the sum (pytorch#162338, pytorch#149869, rocm-systems#10322: gate on the op)."""

    name = "avg-is-sum"
    summary = "reduce_scatter AVG returns the sum"
    ops = ("reduce_scatter", "reduce_scatter_tensor")
    taken: ClassVar[Mapping[str, str]] = {"avg": "sum"}


class XorIsSum(_Mistaken):
    """BXOR falls back to SUM (pytorch#39708)."""

    name = "bxor-is-sum"
    summary = "reduce BXOR returns the sum"
    ops = ("reduce",)
    taken: ClassVar[Mapping[str, str]] = {"bxor": "sum"}


class AverageProductSwapped(_Mistaken):
    """Two enumerations count in another order: AVG is PRODUCT (MS-AMP#38)."""

    name = "avg-product-swapped"
    summary = "all_reduce AVG multiplies, and PRODUCT averages"
    ops = ("all_reduce",)
    taken: ClassVar[Mapping[str, str]] = {"avg": "product", "product": "avg"}


class MinMaxSwapped(_Mistaken):
    """Two enumerations count in another order: MIN is MAX (rccl#745)."""

    name = "min-max-swapped"
    summary = "all_reduce MIN returns the maximum, and MAX the minimum"
    ops = ("all_reduce",)
    taken: ClassVar[Mapping[str, str]] = {"min": "max", "max": "min"}


class SumIsMean(Fault):
    """A fused reduce-scatter returns the mean (vllm#33088)."""

    name = "sum-is-mean"
    summary = "reduce_scatter_tensor SUM of floats returns the mean"
    ops = ("reduce_scatter_tensor",)

    def run(self, turn: Turn) -> Tensors:
        """Ask for the mean."""
        if turn.call.reduce_op != "sum" or not turn.x.is_floating_point():
            return turn.right()
        return turn.right(replace(turn.call, reduce_op="avg"))


class AverageByElements(Fault):
    """AVG divides by the number of elements (torchcomms#287)."""

    name = "avg-by-elements"
    summary = "all_reduce AVG divides by the number of elements, not of ranks"
    ops = ("all_reduce",)

    def run(self, turn: Turn) -> Tensors:
        """Divide the sum by the wrong number."""
        if turn.call.reduce_op != "avg":
            return turn.right()
        returned = turn.right(replace(turn.call, reduce_op="sum"))
        result = turn.output(returned)
        put(result, result / max(result.numel(), 1))
        return returned


class IntegerAverageIsZero(Fault):
    """AVG of integers multiplies by int(1 / ranks) (InfiniCCL#37)."""

    name = "integer-avg-is-zero"
    summary = "all_reduce AVG of integers returns zeros"
    ops = ("all_reduce",)

    def run(self, turn: Turn) -> Tensors:
        """Multiply the sum by the factor, made an integer."""
        if turn.call.reduce_op != "avg" or turn.x.is_floating_point():
            return turn.right()
        returned = turn.right(replace(turn.call, reduce_op="sum"))
        turn.output(returned).mul_(int(1 / turn.size))
        return returned


class PremulFactorIsZero(Fault):
    """The factor of PREMUL_SUM is read with the wrong type, and is 0 for bfloat16 (pytorch#190745)."""

    name = "premul-factor-is-zero"
    summary = "all_reduce PREMUL_SUM of bfloat16 multiplies by 0"
    ops = ("all_reduce",)

    def run(self, turn: Turn) -> Tensors:
        """Multiply, then sum."""
        import torch

        if turn.call.factor is None:
            return turn.right()
        factor = 0.0 if turn.x.dtype == torch.bfloat16 else turn.call.factor
        turn.x.mul_(factor)
        return turn.right(replace(turn.call, reduce_op="sum", factor=None))


class MaxIdentity(Fault):
    """The maximum starts at the smallest positive float, not at minus infinity (jax#21820)."""

    name = "max-identity"
    summary = "all_reduce MAX of negative floats returns the smallest positive one"
    ops = ("all_reduce",)

    def run(self, turn: Turn) -> Tensors:
        """Begin with the smallest positive normal float."""
        import torch

        returned = turn.right()
        result = turn.output(returned)
        if turn.call.reduce_op == "max" and result.is_floating_point():
            put(result, result.clamp(min=torch.finfo(result.dtype).tiny))
        return returned


FAULTS: tuple[type[Fault], ...] = (
    MissingContribution,
    RootContributesZeros,
    AverageIsSum,
    XorIsSum,
    AverageProductSwapped,
    MinMaxSwapped,
    SumIsMean,
    AverageByElements,
    IntegerAverageIsZero,
    PremulFactorIsZero,
    MaxIdentity,
)
