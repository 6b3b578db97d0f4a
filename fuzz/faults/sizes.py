"""Tails, thresholds, alignment, and numbers of ranks."""

from __future__ import annotations

from itertools import count
from typing import ClassVar

from fuzz.faults.base import Fault, Tensors, Turn, flat, put


class TailNotWritten(Fault):
    """Elements past the last whole pack of 8 are not reduced (nccl#1950, rccl#1556)."""

    name = "tail-not-written"
    summary = "all_reduce leaves the elements past the last multiple of 8 as they were"
    ops = ("all_reduce",)

    def run(self, turn: Turn) -> Tensors:
        """Put the old tail back."""
        old = flat(turn.x)
        returned = turn.right()
        result = turn.output(returned)
        elements, tail = flat(result), result.numel() // 8 * 8
        elements[tail:] = old[tail:]
        put(result, elements)
        return returned


class _TailKept(Fault):
    """The output's elements past the last whole pack stay what they were."""

    ops = ("reduce_scatter_tensor",)
    pack: int

    def wrong(self, turn: Turn) -> bool:
        """Whether this call leaves its tail."""
        return True

    def run(self, turn: Turn) -> Tensors:
        """Put the old tail back."""
        out = turn.output({})
        held = flat(out)
        returned = turn.right()
        if self.wrong(turn):
            elements, tail = flat(out), out.numel() // self.pack * self.pack
            elements[tail:] = held[tail:]
            put(out, elements)
        return returned


class AloneAverageTail(_TailKept):
    """AVG in a world of one does not write the tail (nccl#1950, pytorch#168092)."""

    name = "alone-avg-tail"
    summary = "reduce_scatter_tensor AVG in a world of one rank does not write past the last multiple of 8"
    pack = 8

    def wrong(self, turn: Turn) -> bool:
        """Alone, and AVG."""
        return turn.size == 1 and turn.call.reduce_op == "avg"


class TailOf128(_TailKept):
    """The tail of a size that is not a multiple of 128 is wrong (rccl#1556)."""

    name = "tail-of-128"
    summary = "reduce_scatter_tensor to more than 128 elements does not write past the last multiple of 128"
    pack = 128

    def wrong(self, turn: Turn) -> bool:
        """One whole pack at least."""
        return turn.output({}).numel() > self.pack


class ElementsForBytes(Fault):
    """A limit of 4 KiB is compared with elements, so the second half is garbage (FasterTransformer#480)."""

    name = "elements-for-bytes"
    summary = "all_reduce of more than 1,024 elements of two bytes reads past its staging buffer"
    ops = ("all_reduce",)

    def run(self, turn: Turn) -> Tensors:
        """Shift what lies past the limit by one element."""
        returned = turn.right()
        if turn.x.element_size() == 2 and turn.x.numel() > 1024:
            result = turn.output(returned)
            elements = flat(result)
            elements[1024:] = elements[1023:-1].clone()
            put(result, elements)
        return returned


class RightOnFirstRankOnly(Fault):
    """A two-shot all-reduce gathers its parts with an index that is right on rank 0 only (FasterTransformer#672)."""

    name = "right-on-first-rank-only"
    summary = "all_reduce of a multiple of the ranks turns the parts of its result by the own rank"
    ops = ("all_reduce",)

    def run(self, turn: Turn) -> Tensors:
        """Turn the parts."""
        returned = turn.right()
        result = turn.output(returned)
        if result.numel() % turn.size == 0:
            put(result, flat(result).roll(-turn.me * (result.numel() // turn.size)))
        return returned


class FlakyAtOneMebibyte(Fault):
    """1,048,576 bytes come out wrong in about 30 % of the runs (nccl#2001): three of ten, in a fixed order."""

    name = "flaky-at-1-mib"
    summary = "all_reduce of exactly 1,048,576 bytes returns a line of zeros in three of ten runs"
    ops = ("all_reduce",)
    # As the library's own state it outlives a case.
    runs: ClassVar[count[int]] = count()

    def run(self, turn: Turn) -> Tensors:
        """Lose a cache line, now and then."""
        returned = turn.right()
        result = turn.output(returned)
        if result.numel() * result.element_size() == 1 << 20 and next(self.runs) % 10 in (2, 5, 8):
            elements, line = flat(result), 64 // result.element_size()
            elements[result.numel() // 2 :][:line] = 0
            put(result, elements)
        return returned


class ExtentOverflow(Fault):
    """count x extent overflows (ompi#9606): 2**31 elements there, 2**16 here."""

    name = "extent-overflow"
    summary = "all_gather_into_tensor of a view that spans more than 65,536 elements wraps its offsets around"
    ops = ("all_gather_into_tensor",)

    def run(self, turn: Turn) -> Tensors:
        """Read at the offsets modulo 2**16."""
        import torch

        x = turn.x
        if x.dim() != 1 or x.is_contiguous():
            return turn.right()
        offsets = torch.arange(x.numel()) * x.stride(0)
        span = int(offsets[-1]) + 1
        return turn.contribute(x.as_strided((span,), (1,))[offsets % (1 << 16)])


class PowersOfTwoOnly(Fault):
    """A world that is no power of two folds its surplus ranks in twice (gloo#184)."""

    name = "powers-of-two-only"
    summary = "all_reduce SUM over a number of ranks that is no power of two counts the surplus ranks twice"
    ops = ("all_reduce",)

    def run(self, turn: Turn) -> Tensors:
        """Contribute twice from the surplus ranks."""
        whole = 1 << (turn.size.bit_length() - 1)
        return turn.contribute(turn.x * 2) if turn.call.reduce_op == "sum" and turn.me >= whole else turn.right()


class UnalignedShift(Fault):
    """An address is rounded down to 8 bytes, so the data are shifted (mpi4py#186)."""

    name = "unaligned-shift"
    summary = "all_gather_into_tensor of an input that is not aligned to 8 bytes sends what begins before it"
    ops = ("all_gather_into_tensor",)

    def run(self, turn: Turn) -> Tensors:
        """Read from the aligned address on."""
        x = turn.x
        before = x.data_ptr() % 8 // x.element_size()
        if not before or before > x.storage_offset() or not x.is_contiguous():
            return turn.right()
        return turn.contribute(x.as_strided(x.shape, x.stride(), x.storage_offset() - before).clone())


class TwelveIntegers(Fault):
    """Halving and doubling of 12 integers gives ranks each other's part (gloo#303)."""

    name = "twelve-integers"
    summary = "reduce_scatter_tensor of 12 int32 gives each rank the next one's part"
    ops = ("reduce_scatter_tensor",)

    def run(self, turn: Turn) -> Tensors:
        """Turn the input by one part."""
        import torch

        if turn.x.dtype != torch.int32 or turn.x.numel() != 12:
            return turn.right()
        return turn.contribute(flat(turn.x).roll(-turn.output({}).numel()))


FAULTS: tuple[type[Fault], ...] = (
    TailNotWritten,
    AloneAverageTail,
    TailOf128,
    ElementsForBytes,
    RightOnFirstRankOnly,
    FlakyAtOneMebibyte,
    ExtentOverflow,
    PowersOfTwoOnly,
    UnalignedShift,
    TwelveIntegers,
)
