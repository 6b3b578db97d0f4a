"""What one call leaves behind for the next: stale buffers, shared state, counters that stand still."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from fuzz.faults.base import Fault, OfInPlace, OfReturned, Tensors, Turn, flat, put

if TYPE_CHECKING:
    import torch


def _begin_with(elements: torch.Tensor, stale: torch.Tensor | None) -> torch.Tensor:
    """Elements whose first ones are stale ones, as many as there are."""
    if stale is None or stale.dtype != elements.dtype:
        return elements
    common = min(len(stale), len(elements))
    elements[:common] = stale[:common]
    return elements


class StaleSlot(Fault):
    """Without a memory barrier a peer's slot is read before it is written (vllm#2760)."""

    name = "stale-slot"
    summary = "all_reduce of another size than the one before it reads the last rank's former contribution"
    ops = ("all_reduce",)

    def __init__(self) -> None:
        self._slot: torch.Tensor | None = None

    def run(self, turn: Turn) -> Tensors:
        """Contribute from the last rank what it contributed before."""
        stale, self._slot = self._slot, flat(turn.x)
        if stale is None or len(stale) == turn.x.numel() or turn.me != turn.size - 1:
            return turn.right()
        return turn.contribute(_begin_with(flat(turn.x), stale))


class RegionsOverlap(Fault):
    """The flags lie where a former, smaller call's data ended (vllm#25892)."""

    name = "regions-overlap"
    summary = "all_reduce of more elements than the one before it has its call's number among its result"
    ops = ("all_reduce",)

    def __init__(self) -> None:
        self._calls = 0
        self._elements = 0

    def run(self, turn: Turn) -> Tensors:
        """Write the flag into the result."""
        before, self._elements = self._elements, turn.x.numel()
        self._calls += 1
        returned = turn.right()
        if 0 < before < turn.x.numel():
            result = turn.output(returned)
            elements = flat(result)
            elements[before] = self._calls
            put(result, elements)
        return returned


class CounterStandsStill(Fault):
    """A counter is not advanced, and every second call reads the former one's data (aiter#3928)."""

    name = "counter-stands-still"
    summary = "every second all_reduce of the same shape and dtype returns the result of the one before it"
    ops = ("all_reduce",)

    def __init__(self) -> None:
        self._results: dict[tuple[tuple[int, ...], torch.dtype], torch.Tensor] = {}

    def run(self, turn: Turn) -> Tensors:
        """Return the former result, every second time."""
        returned = turn.right()
        result = turn.output(returned)
        key = (tuple(result.shape), result.dtype)
        if key in self._results:
            put(result, self._results.pop(key))
        else:
            self._results[key] = flat(result)
        return returned


class OneStagingSlot(Fault):
    """A fast rank stages its next call before a slow one has read the first (tokenspeed#1356)."""

    name = "one-staging-slot"
    summary = "an all_reduce that is still under way takes the first rank's contribution to the next one for its own"
    ops = ("all_reduce",)

    def __init__(self) -> None:
        self._slot: torch.Tensor | None = None

    def run(self, turn: Turn) -> Tensors:
        """Nothing comes between."""
        return self.begin(turn)()

    def begin(self, turn: Turn) -> Callable[[], Tensors]:
        """Stage the contribution; what is staged when the call is waited for is reduced."""
        staged = self._slot = flat(turn.x)

        def wait() -> Tensors:
            slot = self._slot
            overwritten = turn.me == 0 and slot is not None and len(slot) == len(staged) and slot.dtype == staged.dtype
            return turn.contribute(slot.clone() if overwritten and slot is not None else staged)

        return wait


class WorksSwapped(OfInPlace):
    """Works are handed out in the order in which they were begun, whichever is waited for (a sibling of
    tokenspeed#1356).
    """

    name = "works-swapped"
    summary = "all_reduces that are waited for in another order than they were begun in return each other's results"

    def __init__(self) -> None:
        self._finished: list[torch.Tensor] = []

    def run(self, turn: Turn) -> Tensors:
        """Nothing comes between."""
        return turn.right()

    def begin(self, turn: Turn) -> Callable[[], Tensors]:
        """Reduce a copy; whoever waits first gets the oldest result."""
        result = flat(turn.x)
        turn.backend.run(turn.case, turn.call, turn.rank, {**turn.tensors, turn.call.inputs[0]: result})
        self._finished.append(result)

        def wait() -> Tensors:
            oldest = self._finished.pop(0)
            same = len(oldest) == len(result) and oldest.dtype == result.dtype
            put(turn.x, oldest if same else result)
            return {}

        return wait


class SharedState(Fault):
    """all_gather and all_reduce use one buffer (sglang#13397)."""

    name = "shared-state"
    summary = "an all_reduce after an all_gather_into_tensor contributes what that one was given"
    ops = ("all_gather_into_tensor", "all_reduce")

    def __init__(self) -> None:
        self._buffer: torch.Tensor | None = None

    def run(self, turn: Turn) -> Tensors:
        """Keep what is gathered, and reduce it."""
        if turn.call.op == "all_gather_into_tensor":
            self._buffer = flat(turn.x)
            return turn.right()
        left, self._buffer = self._buffer, None
        return turn.right() if left is None else turn.contribute(_begin_with(flat(turn.x), left))


class WarmUp(OfReturned):
    """The first call of a size only warms up: what it returns is not written (vllm#30650)."""

    name = "warm-up"
    summary = "the first all_reduce of a size returns memory that was not written"

    def __init__(self) -> None:
        self._sizes: set[int] = set()

    def run(self, turn: Turn) -> Tensors:
        """Return a new tensor as it is."""
        import torch

        if turn.x.numel() in self._sizes:
            return turn.right()
        empty = torch.empty(turn.x.shape, dtype=turn.x.dtype, device=turn.x.device)
        self._sizes.add(turn.x.numel())
        return {turn.call.outputs[0]: empty}


FAULTS: tuple[type[Fault], ...] = (
    StaleSlot,
    RegionsOverlap,
    CounterStandsStill,
    OneStagingSlot,
    WorksSwapped,
    SharedState,
    WarmUp,
)
