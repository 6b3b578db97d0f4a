"""The protocol of a backend: what a user implements to bring their own library under test.

A backend has two halves. What it states (contract, flags, thresholds, availability) is read by the driver, which
never imports the library. What it does (open, run, close) happens inside a rank's child process, which imports neither
Ray nor Hypothesis; modules import torch and the library inside these methods, or lazily.
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from corpus.case import Call, Case
from corpus.contract import Contract
from corpus.flags import Flag
from corpus.thresholds import FAMOUS, Threshold

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class Place:
    """Where one rank stands: `rank` of `size`, how the world meets (`init_method`, a torch.distributed URL), the local
    CUDA `device` or None, and the seconds after which the library should give up by itself (`timeout`).
    """

    rank: int
    size: int
    init_method: str
    device: int | None
    timeout: float


class Backend(ABC):
    """One library under test."""

    name: ClassVar[str]
    summary: ClassVar[str]
    """One line for `cclfuzz backends`."""
    flags: ClassVar[tuple[Flag, ...]] = ()
    thresholds: ClassVar[tuple[Threshold, ...]] = (FAMOUS,)
    faults: ClassVar[Mapping[str, str]] = {}
    """Seeded faults by name, with what each does wrong: our own test of ourselves."""
    gpus_per_rank: ClassVar[int] = 0
    modes: ClassVar[tuple[str, ...]] = ("eager",)
    """The modes (`corpus.case.MODES`) in which programs can be run; of those but eager, `run_program` is asked."""
    launcher: ClassVar[str] = "fork"
    """What starts the ranks: "fork", one process each; "threads", in one process; or the mpiexec of this name in
    `fuzz.ranks.launch.LAUNCHERS`.
    """
    python: str = sys.executable
    """The interpreter of the environment that has the library; whoever knows of another one sets it."""
    spec: str = ""
    """How a case names it (`corpus.naming`); `fuzz.backends.load` sets it."""

    @abstractmethod
    def contract(self, flags: Mapping[str, str]) -> Contract:
        """Return what the library promises under these explicitly set flags."""

    def unavailable(self) -> str | None:
        """Return why the library cannot run on this machine, or None where it can."""
        return None

    def memory(self) -> str:
        """The memory kind that the library works on: "cpu" or "cuda"."""
        return "cuda" if self.gpus_per_rank else "cpu"

    @abstractmethod
    def open(self, place: Place) -> None:
        """Join the world (collective). Raises what the library raises."""

    def prepare(self, case: Case) -> None:
        """Make what a case needs before its first call, such as sub-groups (collective)."""

    @abstractmethod
    def run(self, case: Case, call: Call, rank: int, tensors: Mapping[str, torch.Tensor]) -> Mapping[str, torch.Tensor]:
        """Run one call on this rank and wait for it.

        `tensors` holds the views that this rank passes, by name. Returns the tensors that the library allocated, by the
        name of the output. Raises what the library raises.
        """

    def begin(
        self, case: Case, call: Call, rank: int, tensors: Mapping[str, torch.Tensor]
    ) -> Callable[[], Mapping[str, torch.Tensor]]:
        """Begin an asynchronous call, and return what waits for it and returns what `run` does.

        Other calls are begun before it is waited for. A library without asynchronous calls leaves this alone.
        """
        returned = self.run(case, call, rank, tensors)
        return lambda: returned

    def run_region(
        self, case: Case, calls: Sequence[Call], rank: int, tensors: Mapping[str, torch.Tensor]
    ) -> Mapping[str, torch.Tensor]:
        """Run the calls of one region (all of one op, on one group) on this rank as a unit, and wait for all of them.

        `tensors` and what is returned: as in `run`, of all calls. Raises what the library raises. Asked only of a
        library whose contract has regions.
        """
        raise NotImplementedError(f"{self.name} groups no calls")

    def run_program(self, case: Case, rank: int, tensors: Mapping[str, torch.Tensor]) -> Mapping[str, torch.Tensor]:
        """Run the whole program on this rank, local computations included, in the case's mode, which is not eager.

        `tensors` and what is returned: as in `run`, of all calls. Raises what the library raises.
        """
        raise NotImplementedError(f"{self.name} runs a program call by call")

    def operator(
        self, case: Case, call: Call, rank: int, tensors: Mapping[str, torch.Tensor]
    ) -> tuple[Any, tuple[Any, ...]] | None:
        """Return the registered torch operator (an OpOverload) that `run` goes through, and its positional arguments;
        None where there is none. What it returns is what `run` returns, in order.

        Asked just before `run`, with the same tensors: what the operator's schema and fake say is compared with what
        happens.
        """
        return None

    def routes(self) -> tuple[str, ...]:
        """Return the routes that ran since the last question, in order."""
        return ()

    def versions(self) -> tuple[tuple[str, str], ...]:
        """Return names and versions of the library and of what it runs on (asked inside a rank)."""
        return ()

    @abstractmethod
    def close(self) -> None:
        """Leave the world."""
