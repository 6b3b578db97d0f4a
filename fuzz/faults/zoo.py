"""Wrong behaviours that public bugs of collectives had, over a backend that is right.

Each fault replaces one run of a call. It stands for a kind of bug, and each has a test that says within how many
examples it is found and what the minimal case is.
"""

from __future__ import annotations

import os
import signal
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

from corpus.case import Call, Case
from corpus.contract import Contract
from fuzz.backends.base import Backend, Place

if TYPE_CHECKING:
    import torch

Tensors = Mapping[str, "torch.Tensor"]


class Fault(ABC):
    """One wrong behaviour of the collectives in `ops`."""

    name: ClassVar[str]
    summary: ClassVar[str]
    ops: ClassVar[tuple[str, ...]]

    def applies(self, backend: Backend) -> bool:
        """Whether the backend has a collective that the fault is about."""
        ops = backend.contract({}).ops
        return any(op in ops for op in self.ops)

    @abstractmethod
    def run(self, backend: Backend, case: Case, call: Call, rank: int, tensors: Tensors) -> Tensors:
        """Run the call, wrongly."""


class Faulty(Backend):
    """A backend with one fault."""

    name = "faulty"
    summary = "a backend with a seeded fault"

    def __init__(self, backend: Backend, fault: Fault) -> None:
        self._backend = backend
        self._fault = fault

    def contract(self, flags: Mapping[str, str]) -> Contract:
        """What the backend promises."""
        return self._backend.contract(flags)

    def open(self, place: Place) -> None:
        """Join the world."""
        self._backend.open(place)

    def prepare(self, case: Case) -> None:
        """Make what the case needs."""
        self._backend.prepare(case)

    def run(self, case: Case, call: Call, rank: int, tensors: Tensors) -> Tensors:
        """Run the call, wrongly where the fault is about it."""
        if call.op in self._fault.ops:
            return self._fault.run(self._backend, case, call, rank, tensors)
        return self._backend.run(case, call, rank, tensors)

    def begin(self, case: Case, call: Call, rank: int, tensors: Tensors) -> Callable[[], Tensors]:
        """Begin the call; one that the fault is about is over at once."""
        if call.op in self._fault.ops:
            return super().begin(case, call, rank, tensors)
        return self._backend.begin(case, call, rank, tensors)

    def close(self) -> None:
        """Leave the world."""
        self._backend.close()


class MissingContribution(Fault):
    """The last rank of three or more contributes nothing (torchcomms#477: the root contributes zeros)."""

    name = "missing-contribution"
    summary = "all_reduce SUM over three ranks or more leaves out the last rank"
    ops = ("all_reduce",)

    def run(self, backend: Backend, case: Case, call: Call, rank: int, tensors: Tensors) -> Tensors:
        """Contribute zeros from the last rank, then copy the result back."""
        import torch

        ranks = case.ranks(call)
        if len(ranks) < 3 or rank != ranks[-1] or call.reduce_op != "sum":
            return backend.run(case, call, rank, tensors)
        name = call.inputs[0]
        silent = torch.zeros_like(tensors[name])
        returned = backend.run(case, call, rank, {**tensors, name: silent})
        if not returned:
            tensors[name].copy_(silent)
        return returned


class TailNotWritten(Fault):
    """Elements past the last whole pack of 8 are not reduced (nccl#1950, rccl#1556)."""

    name = "tail-not-written"
    summary = "all_reduce leaves the elements past the last multiple of 8 as they were"
    ops = ("all_reduce",)

    def run(self, backend: Backend, case: Case, call: Call, rank: int, tensors: Tensors) -> Tensors:
        """Put the old tail back."""
        x = tensors[call.inputs[0]]
        old = x.clone().reshape(-1)
        returned = backend.run(case, call, rank, tensors)
        result = returned[call.outputs[0]] if returned else x
        tail = result.numel() // 8 * 8
        fixed = result.reshape(-1).clone()
        fixed[tail:] = old[tail:]
        result.copy_(fixed.reshape(result.shape))
        return returned


class AverageIsSum(Fault):
    """AVG returns the sum (pytorch#162338, rocm-systems#10322: gate on the op)."""

    name = "avg-is-sum"
    summary = "reduce_scatter AVG returns the sum"
    ops = ("reduce_scatter", "reduce_scatter_tensor")

    def run(self, backend: Backend, case: Case, call: Call, rank: int, tensors: Tensors) -> Tensors:
        """Ask for the sum."""
        return backend.run(case, replace(call, reduce_op="sum") if call.reduce_op == "avg" else call, rank, tensors)


class InputClobbered(Fault):
    """A gather uses its input as scratch (ompi#2824, mpich#6893: buffers that are not outputs change)."""

    name = "input-clobbered"
    summary = "all_gather leaves the last element of its input negated"
    ops = ("all_gather",)

    def run(self, backend: Backend, case: Case, call: Call, rank: int, tensors: Tensors) -> Tensors:
        """Write to the input afterwards."""
        returned = backend.run(case, call, rank, tensors)
        x = tensors[call.inputs[0]].reshape(-1)
        if x.numel() and x.dtype.is_signed:
            x[-1:].neg_()
        return returned


class GatherMisordered(Fault):
    """all_gather returns the ranks in another order from three ranks on (nccl#1906)."""

    name = "gather-misordered"
    summary = "all_gather_into_tensor over three ranks or more swaps the last two"
    ops = ("all_gather_into_tensor",)

    def run(self, backend: Backend, case: Case, call: Call, rank: int, tensors: Tensors) -> Tensors:
        """Swap the last two chunks."""
        returned = backend.run(case, call, rank, tensors)
        size = len(case.ranks(call))
        if size >= 3:
            out = tensors[call.outputs[0]]
            chunks = list(out.clone().reshape(-1).chunk(size)) if out.numel() else []
            if chunks:
                import torch

                chunks[-1], chunks[-2] = chunks[-2], chunks[-1]
                out.copy_(torch.cat(chunks).reshape(out.shape))
        return returned


class ElementsForBytes(Fault):
    """A limit of 4 KiB is compared with elements, so the second half is garbage (FasterTransformer#480)."""

    name = "elements-for-bytes"
    summary = "all_reduce of more than 1,024 elements of two bytes reads past its staging buffer"
    ops = ("all_reduce",)

    def run(self, backend: Backend, case: Case, call: Call, rank: int, tensors: Tensors) -> Tensors:
        """Shift what lies past the limit by one element."""
        x = tensors[call.inputs[0]]
        returned = backend.run(case, call, rank, tensors)
        if x.element_size() == 2 and x.numel() > 1024:
            result = returned[call.outputs[0]] if returned else x
            flat = result.reshape(-1).clone()
            flat[1024:] = flat[1023:-1].clone()
            result.copy_(flat.reshape(result.shape))
        return returned


class CrashOnEmpty(Fault):
    """An empty tensor crashes rank 0 (pytorch#85234: SIGFPE)."""

    name = "crash-on-empty"
    summary = "broadcast of an empty tensor kills the root with SIGFPE"
    ops = ("broadcast",)

    def run(self, backend: Backend, case: Case, call: Call, rank: int, tensors: Tensors) -> Tensors:
        """Die on the root."""
        if tensors[call.inputs[0]].numel() == 0 and rank == case.ranks(call)[0]:
            os.kill(os.getpid(), signal.SIGFPE)
        return backend.run(case, call, rank, tensors)


class HangOnFew(Fault):
    """A size that the world does not divide hangs (flashinfer#4393: fewer packs than ranks)."""

    name = "hang-on-few"
    summary = "all_gather of fewer elements than ranks never returns"
    ops = ("all_gather",)

    def run(self, backend: Backend, case: Case, call: Call, rank: int, tensors: Tensors) -> Tensors:
        """Wait for ever."""
        while 0 < tensors[call.inputs[0]].numel() < len(case.ranks(call)):
            time.sleep(3600)
        return backend.run(case, call, rank, tensors)


FAULTS: dict[str, Fault] = {
    fault.name: fault
    for fault in (
        MissingContribution(),
        TailNotWritten(),
        AverageIsSum(),
        InputClobbered(),
        GatherMisordered(),
        ElementsForBytes(),
        CrashOnEmpty(),
        HangOnFew(),
    )
}
