"""Ranks that are threads of one process: their executor, and the one actor that supervises them."""

from __future__ import annotations

import concurrent.futures
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from fuzz.ranks.crew import RAISED_SECONDS, Crew, Place
from oracles.observation import Observation, Status

if TYPE_CHECKING:
    from fuzz.ranks.execute import Executor

_RANKS = "ranks"
"""The report in which the one observation of the process holds those of its ranks."""


class ThreadedExecutor:
    """The executors of all ranks of a world of `size` ranks, each in a thread of its own."""

    def __init__(
        self, *, backend: str, rank: int, size: int, init_method: str, device: int | None, timeout: float
    ) -> None:
        from fuzz.ranks.execute import Executor

        self._rank = rank
        self._threads = [concurrent.futures.ThreadPoolExecutor(1) for _ in range(size)]
        opening = [
            thread.submit(
                Executor,
                backend=backend,
                rank=each,
                size=size,
                init_method=init_method,
                device=device,
                timeout=timeout,
            )
            for each, thread in enumerate(self._threads)
        ]
        # The first that failed is told, not those that wait for it.
        opened = {each: each.result() for each in concurrent.futures.as_completed(opening)}
        self._executors: list[Executor] = [opened[each] for each in opening]

    def run(self, case_text: str, begun: Callable[[int], None]) -> Observation:
        """Run a case on every rank, and return the ranks' observations in the reports of one.

        Ranks that wait for one whose call raised wait in vain; after a moment they are left to it, and CUT_SHORT.
        """
        calls = [
            thread.submit(executor.run, case_text, begun)
            for thread, executor in zip(self._threads, self._executors, strict=True)
        ]
        pending = set(calls)
        raised = False
        while pending:
            done, pending = concurrent.futures.wait(
                pending,
                timeout=RAISED_SECONDS if raised else None,
                return_when=concurrent.futures.FIRST_COMPLETED,
            )
            if not done:
                break
            raised = raised or any(call.result().status is not Status.OK for call in done)
        seen = [
            Observation(rank, Status.CUT_SHORT) if call in pending else call.result() for rank, call in enumerate(calls)
        ]
        return Observation(self._rank, Status.OK, reports={_RANKS: [each.to_json() for each in seen]})

    def close(self) -> None:
        """Leave the world."""
        closing = [
            thread.submit(executor.close) for thread, executor in zip(self._threads, self._executors, strict=True)
        ]
        for each in closing:
            each.result()


EXECUTOR = f"{__name__}:{ThreadedExecutor.__name__}"


class ThreadsCrew:
    """The one actor of a world whose ranks are threads, with the interface of `fuzz.ranks.crew.Crew`."""

    def __init__(self, crew: Crew, size: int) -> None:
        """`crew` is of one rank."""
        self.size = size
        self.gpus_per_rank = 0
        self.crew = crew

    @property
    def places(self) -> list[Place]:
        """Where the ranks are: all in one process."""
        return self.crew.places * self.size

    def fill(self) -> list[Observation]:
        """As `Crew.fill`."""
        return self._each(self.crew.fill())

    def ask(self, method: str, arguments: Sequence[tuple[Any, ...]], seconds: float) -> list[Observation]:
        """Call `start`, the one method that has arguments by rank: a base, an interpreter, a configuration."""
        base, python, config = arguments[0]
        return self._each(self.crew.ask(method, [(base, python, {**config, "executor": EXECUTOR})], seconds))

    def run(self, case_text: str, deadline: float, patience: float = RAISED_SECONDS) -> list[Observation]:
        """As `Crew.run`; how long ranks that raise are waited for is the process's own affair."""
        return self._each(self.crew.run(case_text, deadline, patience))

    def stop(self) -> None:
        """As `Crew.stop`."""
        self.crew.stop()

    def leave(self, grace: float) -> bool:
        """As `Crew.leave`."""
        return self.crew.leave(grace)

    def disband(self) -> None:
        """As `Crew.disband`."""
        self.crew.disband()

    def _each(self, seen: list[Observation]) -> list[Observation]:
        """The ranks' own observations; what became of the process, became of each."""
        if not seen:
            return []
        if _RANKS in seen[0].reports:
            return [Observation.from_json(each) for each in seen[0].reports[_RANKS]]
        return [replace(seen[0], rank=rank) for rank in range(self.size)]
