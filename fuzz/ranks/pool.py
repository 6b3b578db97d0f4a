"""A world: the ranks that run cases under one configuration, rebuilt when one of them breaks.

Actors and zygotes outlive the processes that hold the process group, so a world is rebuilt by forking, in
hundredths of a second.
"""

from __future__ import annotations

import secrets
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Self

from fuzz.ranks import zygote
from fuzz.ranks.actor import OPEN_SECONDS
from fuzz.ranks.child import ChildConfig
from fuzz.ranks.cluster import Cluster
from fuzz.ranks.crew import Crew, Place
from fuzz.ranks.launch import LaunchedCrew
from fuzz.ranks.threads import ThreadsCrew
from oracles.observation import Observation, Status

LIBRARY_TIMEOUT_SECONDS = 3600.0
"""The process group's own timeout. Beyond any deadline: a hang is to be seen, not to raise."""

_GRACE_SECONDS = 1.0
"""How long a sound world may take to close its process group."""


@dataclass(frozen=True, slots=True)
class WorldConfig:
    """What all the cases of one world have in common.

    `environment` holds process-level variables: their value, or None where it must be unset. It is applied
    after torch was imported and before anything else is. `python` is the interpreter of the environment
    under test, `executor` the "module:Class" that runs cases (see `fuzz.ranks.child.Executor`). `timeout` is the
    process group's own, in seconds. `launcher` is "fork", "threads", or the mpiexec of `fuzz.ranks.launch.LAUNCHERS`
    that starts the ranks.
    """

    backend: str
    size: int
    environment: tuple[tuple[str, str | None], ...] = ()
    python: str = sys.executable
    gpus_per_rank: int = 0
    executor: str = "fuzz.ranks.execute:Executor"
    timeout: float = LIBRARY_TIMEOUT_SECONDS
    launcher: str = "fork"


class World:
    """Ranks that run one case after another. A context manager.

    `opened` is whether the last run had a world to run in. `rebuilds` counts how often the world was built again after
    it broke; `last_rebuild_seconds` is how long the last building took, the first one included.
    """

    def __init__(self, config: WorldConfig, cluster: Cluster) -> None:
        """Describe the world. It is built by the first `run`."""
        self.config = config
        self.rebuilds = 0
        self.last_rebuild_seconds = 0.0
        self.opened = True
        self._cluster = cluster
        self._crew: Crew | LaunchedCrew | ThreadsCrew
        if config.launcher == "fork":
            self._crew = cluster.crew(config.size, config.gpus_per_rank)
        elif config.launcher == "threads":
            self._crew = ThreadsCrew(cluster.crew(1, 0), config.size)
        else:
            self._crew = LaunchedCrew(config.size, config.launcher)
        self._name = secrets.token_hex(4)
        self._built = 0
        self._open = False
        self._busy = False

    def run(self, case_text: str, deadline: float) -> list[Observation]:
        """Run one case on every rank and return the ranks' observations in order.

        `deadline` is in seconds. Whatever a rank does is an observation: one that is not OK breaks the world,
        which the next `run` builds again first. If that fails the observations say so, with `call` -1.
        Raises `PlacementError` if the cluster has no room.
        """
        self._busy = True
        observations = [] if self._open else self._build()
        self.opened = _sound(observations)
        if _sound(observations):
            self._open = False
            observations = _cut_short(self._crew.run(case_text, deadline))
        self._open = _sound(observations)
        if not self._open:
            self._crew.stop()
        self._busy = False
        return observations

    def run_once(
        self, case_text: str, deadline: float, follow_up: Callable[[list[Observation]], str | None]
    ) -> list[Observation]:
        """Run one case as `run` does, after which the world is not to be trusted: the next case gets another one.

        No rank is ended for what another one raised, only at the deadline. `follow_up` is shown the observations, and
        may return a case to run in the world as they left it; what the ranks see there stands in their reports, under
        "probe".
        """
        self._busy = True
        observations = [] if self._open else self._build()
        self._open = False
        self.opened = _sound(observations)
        if self.opened:
            observations = _cut_short(self._crew.run(case_text, deadline, deadline))
            following = follow_up(observations)
            if following is not None:
                seen = self._crew.run(following, deadline, deadline)
                observations = [
                    replace(first, reports={**first.reports, "probe": then.to_json()})
                    for first, then in zip(observations, seen, strict=True)
                ]
        self._crew.stop()
        self._busy = False
        return observations

    def close(self) -> None:
        """End the ranks. Their actors go back to the cluster if they are sound and hold no GPUs."""
        # A run that was interrupted keeps its actors busy up to its deadline: they are not worth the wait.
        whole = not self._busy and self._crew.leave(_GRACE_SECONDS if self._open else 0.0)
        self._open = False
        if whole and not self.config.gpus_per_rank and isinstance(self._crew, Crew):
            self._cluster.keep(self._crew)
        else:
            self._crew.disband()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _build(self) -> list[Observation]:
        began = time.monotonic()
        if lost := self._crew.fill():
            return lost
        base = self._cluster.directory / "ranks"
        arguments = [
            (str(base), self.config.python, config.to_json())
            for config in self._children(zygote.home(base, self.config.python) / self._name)
        ]
        observations = self._crew.ask("start", arguments, zygote.START_SECONDS + OPEN_SECONDS)
        self.rebuilds += self._built > 0
        self._built += 1
        self.last_rebuild_seconds = time.monotonic() - began
        return observations

    def _children(self, folder: Path) -> list[ChildConfig]:
        places = self._crew.places
        init_method = rendezvous(places, folder / f"store-{self._built}")
        children = []
        for rank in range(self.config.size):
            visible, device = visible_devices(places, rank)
            given = (*_network(places), ("CUDA_VISIBLE_DEVICES", visible))
            children.append(
                ChildConfig(
                    world=f"{self._name}-{self._built}",
                    rank=rank,
                    size=self.config.size,
                    backend=self.config.backend,
                    executor=self.config.executor,
                    init_method=init_method,
                    device=device,
                    environment=(*given, *self.config.environment),
                    path=_import_path(self.config.python),
                    timeout=self.config.timeout,
                    folder=str(folder),
                )
            )
        return children


def rendezvous(places: Sequence[Place], store: Path) -> str:
    """Return the address at which ranks meet: a file on one machine, a TCP store on rank 0's across nodes.

    A TCP store with four ranks sometimes stalls for five seconds where a file does not.
    """
    if _on_one_machine(places):
        return f"file://{store}"
    address = places[0].address
    return f"tcp://{f'[{address}]' if ':' in address else address}:{places[0].port}"


def visible_devices(places: Sequence[Place], rank: int) -> tuple[str, int | None]:
    """Return CUDA_VISIBLE_DEVICES for a rank, and which of those devices is its own (None: it has none).

    All GPUs of the world on the rank's node are visible: without its peers' a library takes no
    peer-to-peer path, and says nothing.
    """
    here = [gpu for place in places if place.address == places[rank].address for gpu in place.gpus]
    own = places[rank].gpus
    return ",".join(here), here.index(own[0]) if own else None


def _on_one_machine(places: Sequence[Place]) -> bool:
    return len({place.address for place in places}) == 1


def _network(places: Sequence[Place]) -> tuple[tuple[str, str | None], ...]:
    return (("GLOO_SOCKET_IFNAME", "lo"),) if _on_one_machine(places) else ()


def _import_path(python: str) -> tuple[str, ...]:
    """What an executor may import: all that we can, under our interpreter; nothing more under another."""
    return tuple(str(Path(entry).absolute()) for entry in sys.path) if python == sys.executable else ()


def _cut_short(observations: list[Observation]) -> list[Observation]:
    """Call no rank hung that waited for one that was gone.

    A zygote tells the ranks of its own node that one died; those on other nodes wait for the deadline.
    """
    if not any(observation.status in (Status.DIED, Status.LOST) for observation in observations):
        return observations
    return [
        replace(observation, status=Status.CUT_SHORT) if observation.status is Status.HUNG else observation
        for observation in observations
    ]


def _sound(observations: Sequence[Observation]) -> bool:
    return all(observation.status is Status.OK for observation in observations)
