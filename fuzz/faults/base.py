"""What a fault is, and how it is laid over a backend that is right."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

from corpus.case import Call, Case
from corpus.contract import Contract
from fuzz.backends.base import Backend, Place

if TYPE_CHECKING:
    import torch

Tensors = Mapping[str, "torch.Tensor"]


def flat(tensor: torch.Tensor) -> torch.Tensor:
    """A copy of the logical elements in row-major order, 1-D."""
    return tensor.reshape(-1).clone()


def put(tensor: torch.Tensor, elements: torch.Tensor) -> None:
    """Write row-major elements into a tensor, whatever its layout."""
    tensor.copy_(elements.reshape(tensor.shape))


@dataclass(frozen=True, slots=True)
class Turn:
    """One rank's turn at one call: what the backend was asked to run. `tensors` are the views that the rank passes."""

    backend: Backend
    case: Case
    call: Call
    rank: int
    tensors: Tensors

    @property
    def ranks(self) -> tuple[int, ...]:
        """Global ranks that take part, in group order."""
        return self.case.ranks(self.call)

    @property
    def size(self) -> int:
        """How many ranks take part."""
        return len(self.ranks)

    @property
    def me(self) -> int:
        """This rank within the group."""
        return self.ranks.index(self.rank)

    @property
    def x(self) -> torch.Tensor:
        """The first input."""
        return self.tensors[self.call.inputs[0]]

    def output(self, returned: Tensors) -> torch.Tensor:
        """The first output: what the call returned, or the caller's tensor."""
        name = self.call.outputs[0]
        return returned[name] if name in returned else self.tensors[name]

    def right(self, call: Call | None = None) -> Tensors:
        """Run the call, or another one on its tensors, as the backend does."""
        return self.backend.run(self.case, self.call if call is None else call, self.rank, self.tensors)

    def contribute(self, elements: torch.Tensor) -> Tensors:
        """Run the call with other elements (row-major) as this rank's first input; the outputs stay the caller's."""
        name, given = self.call.inputs[0], elements.reshape(self.x.shape).contiguous()
        returned = self.backend.run(self.case, self.call, self.rank, {**self.tensors, name: given})
        if name in self.call.outputs:
            self.tensors[name].copy_(given)
        return returned

    def gathered(self) -> list[torch.Tensor]:
        """The first input's elements on each rank, in group order. The collective that does it is right."""
        import torch

        x = flat(self.x)
        names = tuple(f"y{place}" for place in range(self.size))
        outputs = {name: torch.empty_like(x) for name in names}
        call = Call("all_gather", ("x",), names, group=self.call.group)
        self.backend.run(self.case, call, self.rank, {"x": x, **outputs})
        return list(outputs.values())


class Fault(ABC):
    """One wrong behaviour of the collectives in `ops`. An object lives as long as one case: what it keeps between calls
    is what a library keeps by mistake.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    ops: ClassVar[tuple[str, ...]]

    @classmethod
    def applies(cls, backend: Backend) -> bool:
        """Whether the backend has a collective that the fault is about."""
        ops = backend.contract({}).ops
        return any(op in ops for op in cls.ops)

    def seen(self, case: Case) -> Case:
        """The case as the library takes it."""
        return case

    @abstractmethod
    def run(self, turn: Turn) -> Tensors:
        """Run the call, wrongly."""

    def begin(self, turn: Turn) -> Callable[[], Tensors]:
        """Begin an asynchronous call, wrongly. By default it is over at once."""
        returned = self.run(turn)
        return lambda: returned

    def run_region(self, turns: Sequence[Turn]) -> Tensors:
        """Run the calls of a region, wrongly. By default one after another."""
        return {name: tensor for turn in turns for name, tensor in self.run(turn).items()}


class OfReturned(Fault):
    """A fault of an all_reduce that returns a new tensor and must leave its input alone."""

    ops = ("all_reduce",)

    @classmethod
    def applies(cls, backend: Backend) -> bool:
        """Whether the backend's all_reduce returns its output."""
        promise = backend.contract({}).ops.get("all_reduce")
        return promise is not None and promise.returned


class OfInPlace(Fault):
    """A fault of an all_reduce whose output is its input."""

    ops = ("all_reduce",)

    @classmethod
    def applies(cls, backend: Backend) -> bool:
        """Whether the backend's all_reduce works in place."""
        promise = backend.contract({}).ops.get("all_reduce")
        return promise is not None and promise.in_place


class Peers(Fault):
    """A fault that is made from the other ranks' inputs."""

    @classmethod
    def applies(cls, backend: Backend) -> bool:
        """Whether the backend has the collective, and one that tells each rank what the others contribute."""
        return super().applies(backend) and "all_gather" in backend.contract({}).ops


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
        """Make what the case needs, as the fault sees it."""
        self._backend.prepare(self._fault.seen(case))

    def run(self, case: Case, call: Call, rank: int, tensors: Tensors) -> Tensors:
        """Run the call, wrongly where the fault is about it."""
        case = self._fault.seen(case)
        if call.op in self._fault.ops:
            return self._fault.run(Turn(self._backend, case, call, rank, tensors))
        return self._backend.run(case, call, rank, tensors)

    def begin(self, case: Case, call: Call, rank: int, tensors: Tensors) -> Callable[[], Tensors]:
        """Begin the call, wrongly where the fault is about it."""
        case = self._fault.seen(case)
        if call.op in self._fault.ops:
            # Whatever the fault runs is complete when it returns.
            at_once = replace(call, async_op=False, wait=None)
            return self._fault.begin(Turn(self._backend, case, at_once, rank, tensors))
        return self._backend.begin(case, call, rank, tensors)

    def run_region(self, case: Case, calls: Sequence[Call], rank: int, tensors: Tensors) -> Tensors:
        """Run the calls of a region, wrongly where the fault is about them."""
        case = self._fault.seen(case)
        if calls[0].op in self._fault.ops:
            return self._fault.run_region([Turn(self._backend, case, call, rank, tensors) for call in calls])
        return self._backend.run_region(case, calls, rank, tensors)

    def close(self) -> None:
        """Leave the world."""
        self._backend.close()
