"""The actors of a world: one a rank, placed by a placement group, and replaced when one is lost."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from fuzz.ranks.actor import RankActor
from oracles.observation import Observation, Status

CPUS_PER_RANK = 0.01
"""What a rank reserves: next to nothing, as ranks outnumber cores, and where they are is what counts."""

PLACE_SECONDS = 120.0
"""How long ranks wait for others to give back GPUs, and for Ray to start their actors."""

RAISED_SECONDS = 0.3
"""How long ranks may take to say what another one has said before the one that raised is ended."""

MARGIN_SECONDS = 20.0
"""What an actor may need beyond a deadline: a stack, a kill, a busy machine."""


class PlacementError(Exception):
    """The cluster has no room for the ranks; the text says what they need and what there is."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a rank is: its node's address, a port that was free there, the numbers of its GPUs."""

    address: str
    port: int
    gpus: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Seat:
    actor: Any
    place: Place


class Crew:
    """The actors of `size` ranks with `gpus_per_rank` GPUs each. `fill` before anything else."""

    def __init__(self, size: int, gpus_per_rank: int) -> None:
        self.size = size
        self.gpus_per_rank = gpus_per_rank
        self._group: Any = None
        self._seats: list[_Seat | None] = [None] * size

    @property
    def places(self) -> list[Place]:
        """Where the ranks are."""
        return [seat.place for seat in self._seats if seat is not None]

    def fill(self) -> list[Observation]:
        """Give every rank an actor that lives. Returns LOST observations if that fails, nothing if not.

        Raises `PlacementError` if the cluster has no room.
        """
        import ray
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        if self._group is None:
            self._group = _reserve(self.size, self.gpus_per_rank)
        remote: Any = ray.remote(RankActor)
        actors = [
            seat.actor
            if seat is not None
            else remote.options(
                num_cpus=CPUS_PER_RANK,
                num_gpus=self.gpus_per_rank,
                scheduling_strategy=PlacementGroupSchedulingStrategy(self._group, rank),
            ).remote()
            for rank, seat in enumerate(self._seats)
        ]
        # Asked each time: a port that was free may be taken by now.
        calls = [actor.info.remote() for actor in actors]
        limit = time.monotonic() + PLACE_SECONDS
        for rank, actor in enumerate(actors):
            try:
                found = ray.get(calls[rank], timeout=max(limit - time.monotonic(), 0.0))
            except ray.exceptions.RayError as error:
                self._seats[rank] = None
                ray.kill(actor)
                return [_lost(each, error) for each in range(self.size)]
            self._seats[rank] = _Seat(actor, Place(found["address"], found["port"], tuple(found["gpus"])))
        return []

    def ask(self, method: str, arguments: Sequence[tuple[Any, ...]], seconds: float) -> list[Observation]:
        """Call a method of every actor at once, with arguments by rank, and return the observations.

        An actor that has died, or does not answer within `seconds` and a margin, is given up and LOST.
        """
        replies = self._call(method, arguments, seconds)
        return [each if isinstance(each, Observation) else Observation.from_json(each) for each in replies]

    def run(self, case_text: str, deadline: float, patience: float = RAISED_SECONDS) -> list[Observation]:
        """Have every rank run one case, and return their observations by rank.

        Ranks that wait for one whose call raised wait in vain. After a moment (`patience`, in seconds) it is ended, so
        that they need not wait for the deadline; what they say from then on is a consequence, and they are CUT_SHORT.
        """
        import ray

        limit = time.monotonic() + deadline + MARGIN_SECONDS
        calls = {seat.actor.run.remote(case_text, deadline): rank for rank, seat in self._living()}
        found: dict[int, Observation] = {rank: _lost(rank, RuntimeError("no actor")) for rank in range(self.size)}
        pending = list(calls)
        raised: list[int] = []
        cut = False
        while pending:
            left = max(limit - time.monotonic(), 0.0)
            ready, pending = ray.wait(pending, num_returns=1, timeout=patience if raised and not cut else left)
            if not ready and raised and not cut:
                for rank, seat in self._living():
                    if rank in raised:
                        seat.actor.forsake.remote()
                cut = True
                continue
            for call in ready or pending:
                rank = calls[call]
                found[rank] = self._reply(rank, call)
                if cut and found[rank].status in (Status.RAISED, Status.HUNG):
                    found[rank] = replace(found[rank], status=Status.CUT_SHORT)
                elif found[rank].status is Status.RAISED:
                    raised.append(rank)
            if not ready:
                break
        return [found[rank] for rank in range(self.size)]

    def _living(self) -> list[tuple[int, _Seat]]:
        return [(rank, seat) for rank, seat in enumerate(self._seats) if seat is not None]

    def _reply(self, rank: int, call: Any) -> Observation:
        """What an actor has answered; one that has not, or is dead, is given up."""
        import ray

        try:
            return Observation.from_json(ray.get(call, timeout=0.0))
        except ray.exceptions.RayError as error:
            self._give_up(rank)
            return _lost(rank, error)

    def _give_up(self, rank: int) -> None:
        import ray

        seat, self._seats[rank] = self._seats[rank], None
        if seat is not None:
            ray.kill(seat.actor)

    def stop(self) -> None:
        """Have every actor end its child, without waiting for it."""
        for seat in self._seats:
            if seat is not None:
                seat.actor.stop.remote()

    def leave(self, grace: float) -> bool:
        """Have every actor end its child within `grace` seconds; return whether the crew is whole."""
        self._call("leave", [(grace,)] * self.size, grace)
        return None not in self._seats

    def disband(self) -> None:
        """End the actors, which ends their children, and give back what was reserved."""
        import ray

        for seat in self._seats:
            if seat is not None:
                ray.kill(seat.actor)
        self._seats = [None] * self.size
        if self._group is not None:
            ray.util.remove_placement_group(self._group)
            self._group = None

    def _call(self, method: str, arguments: Sequence[tuple[Any, ...]], seconds: float) -> list[Any]:
        """Return what a method returned, by rank, and a LOST observation where an actor was given up."""
        import ray

        limit = time.monotonic() + seconds + MARGIN_SECONDS
        calls = [(rank, getattr(seat.actor, method).remote(*arguments[rank])) for rank, seat in self._living()]
        replies = []
        for rank, call in calls:
            try:
                replies.append(ray.get(call, timeout=max(limit - time.monotonic(), 0.0)))
            except ray.exceptions.RayError as error:
                self._give_up(rank)
                replies.append(_lost(rank, error))
        return replies


def _lost(rank: int, error: Exception) -> Observation:
    text = f"the supervisor of rank {rank} is gone: {str(error).strip() or type(error).__name__}"
    return Observation(rank, Status.LOST, error=text, error_type=type(error).__name__)


def _reserve(size: int, gpus_per_rank: int) -> Any:
    """Reserve one bundle a rank, close together. Raises `PlacementError`."""
    import ray

    cluster: Any = ray
    wanted = gpus_per_rank * size
    there = cluster.cluster_resources().get("GPU", 0.0)
    if wanted > there:
        raise PlacementError(f"a world of {size} ranks needs {wanted} GPUs; the cluster has {there:g}")
    bundle = {"CPU": CPUS_PER_RANK} | ({"GPU": float(gpus_per_rank)} if gpus_per_rank else {})
    group = ray.util.placement_group([bundle] * size, strategy="PACK")
    if not group.wait(PLACE_SECONDS):
        ray.util.remove_placement_group(group)
        raise PlacementError(f"no room for {size} ranks with {bundle} each within {PLACE_SECONDS:.0f} s")
    return group
