"""The smallest breach of each line of a contract: what shows that the line is looked at."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from corpus.case import OPS
from fuzz.backends.base import Backend
from fuzz.faults.base import Fault, Peers, Tensors, Turn, flat, put


class WrongElement(Fault):
    """The last element that a collective writes has its last bit flipped. One subclass for each collective."""

    def run(self, turn: Turn) -> Tensors:
        """Flip a bit, on every rank that has an output."""
        import torch

        returned = turn.right()
        names = [name for name in turn.call.outputs if name in turn.tensors or name in returned]
        if turn.call.op in ("reduce", "gather") and turn.me != turn.call.root:
            names = []
        for name in names[-1:]:
            output = returned.get(name, turn.tensors.get(name))
            assert output is not None
            if output.numel():
                elements = flat(output)
                elements.view(torch.uint8)[-elements.element_size()] ^= 1
                put(output, elements)
        return returned


def _wrong(op: str) -> type[WrongElement]:
    members = {
        "__doc__": f"The last element that {op} writes is wrong.",
        "name": f"wrong-{op}",
        "summary": f"{op} flips the last bit of the last element that it writes",
        "ops": (op,),
    }
    return type(f"Wrong_{op}", (WrongElement,), members)


class Refuses(Fault):
    """float64 is refused, which the contract lists."""

    name = "refuses-float64"
    summary = "every collective refuses float64"
    ops = tuple(op for op in OPS if op != "barrier")

    def run(self, turn: Turn) -> Tensors:
        """Raise on every rank."""
        import torch

        if any(tensor.dtype == torch.float64 for tensor in turn.tensors.values()):
            raise RuntimeError("float64 is not supported")
        return turn.right()


class BarrierDoesNothing(Fault):
    """A barrier that nobody waits in."""

    name = "barrier-does-nothing"
    summary = "barrier returns at once"
    ops = ("barrier",)

    def run(self, turn: Turn) -> Tensors:
        """Return."""
        return {}


class WaitReturnsEarly(Fault):
    """The wait for an asynchronous all_reduce returns before the result is there."""

    name = "wait-returns-early"
    summary = "an asynchronous all_reduce writes its result only after the case"
    ops = ("all_reduce",)

    def run(self, turn: Turn) -> Tensors:
        """Reduce something else where the call is asynchronous."""
        if not turn.call.async_op:
            return turn.right()
        elsewhere = {name: tensor.clone() for name, tensor in turn.tensors.items()}
        return turn.backend.run(turn.case, turn.call, turn.rank, elsewhere)

    def begin(self, turn: Turn) -> Callable[[], Tensors]:
        """Likewise."""
        returned = self.run(turn)
        return lambda: returned


class WrongSplits(Fault):
    """all_to_all_single with splits of its own swaps the first two elements."""

    name = "wrong-splits"
    summary = "all_to_all_single with unequal splits is wrong"
    ops = ("all_to_all_single",)

    def run(self, turn: Turn) -> Tensors:
        """Rotate the output by one."""
        returned = turn.right()
        if turn.call.splits is not None:
            output = turn.output(returned)
            put(output, flat(output).roll(1))
        return returned


class _Reduced(Peers):
    """all_reduce computed by each rank alone from what all contribute."""

    ops = ("all_reduce",)


class WideSum(_Reduced):
    """bfloat16 is summed in float32 and rounded once, where one rounding an addition is promised."""

    name = "wide-sum"
    summary = "all_reduce SUM of bfloat16 stays wide until the end"

    def run(self, turn: Turn) -> Tensors:
        """Sum in float32."""
        import torch

        if turn.x.dtype != torch.bfloat16 or turn.call.reduce_op != "sum":
            return turn.right()
        wide = torch.stack([part.float() for part in turn.gathered()]).sum(0)
        put(turn.x, wide.to(torch.bfloat16))
        return {}


class AverageByReciprocal(_Reduced):
    """The sum is multiplied by a rounded 1/n, where it has to be divided by n."""

    name = "avg-by-reciprocal"
    summary = "all_reduce AVG multiplies by a rounded 1/n"

    def run(self, turn: Turn) -> Tensors:
        """Multiply."""
        import torch

        if turn.call.reduce_op != "avg" or not turn.x.dtype.is_floating_point:
            return turn.right()
        reciprocal = torch.tensor(1.0, dtype=turn.x.dtype) / turn.size
        total, *others = turn.gathered()
        for part in others:
            total = total + part
        put(turn.x, total * reciprocal)
        return {}


class Flushes(_Reduced):
    """Subnormal results become zero, where gradual underflow is promised."""

    name = "flushes-subnormals"
    summary = "all_reduce of float32 flushes subnormal results to zero"

    def run(self, turn: Turn) -> Tensors:
        """Flush."""
        import torch

        returned = turn.right()
        result = turn.output(returned)
        if result.dtype == torch.float32:
            elements = flat(result)
            elements[elements.abs() < torch.finfo(torch.float32).tiny] = 0
            put(result, elements)
        return returned


class BoolByte(Fault):
    """A true bool is stored as the byte 2."""

    name = "bool-byte"
    summary = "all_reduce of bool stores 2 for true"
    ops = ("all_reduce",)

    def run(self, turn: Turn) -> Tensors:
        """Store 2."""
        import torch

        returned = turn.right()
        result = turn.output(returned)
        if result.dtype == torch.bool:
            result.view(torch.uint8).mul_(2)
        return returned


class RegionSwapped(Fault):
    """The results of a region are handed out in another order."""

    name = "region-swapped"
    summary = "a region of all_reduces gives the first two, where they have one size, each other's results"
    ops = ("all_reduce",)

    @classmethod
    def applies(cls, backend: Backend) -> bool:
        """Whether the backend has regions."""
        return "all_reduce" in backend.contract({}).regions.value

    def run(self, turn: Turn) -> Tensors:
        """Outside a region nothing is wrong."""
        return turn.right()

    def run_region(self, turns: Sequence[Turn]) -> Tensors:
        """Swap the first two results."""
        first = turns[0]
        returned = first.backend.run_region(first.case, [turn.call for turn in turns], first.rank, first.tensors)
        left, right = (turn.output(returned) for turn in (turns[0], turns[min(1, len(turns) - 1)]))
        if left.numel() == right.numel():
            kept = flat(left)
            put(left, flat(right))
            put(right, kept)
        return returned


FAULTS = (
    *(_wrong(op) for op in OPS if op != "barrier"),
    Refuses,
    BarrierDoesNothing,
    WaitReturnsEarly,
    WrongSplits,
    WideSum,
    AverageByReciprocal,
    Flushes,
    BoolByte,
    RegionSwapped,
)
