"""Worlds that a library's own mpiexec starts, each under one Ray actor.

mpiexec starts a relay for each rank (`fuzz.ranks.launched`); the rank's process is forked by the zygote as in any other
world, and gets what mpiexec gave to the relay. So a world starts in tenths of a second, a rank's end is told by its
parent and not guessed from what mpiexec says of it, and when a rank dies mpiexec has none of the others to kill.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fuzz.ranks import launched, wire, zygote
from fuzz.ranks.actor import RankActor, _Child
from fuzz.ranks.child import ChildConfig
from fuzz.ranks.crew import CPUS_PER_RANK, MARGIN_SECONDS, PLACE_SECONDS, RAISED_SECONDS, Place
from oracles.observation import Observation, Status

LAUNCH_SECONDS = 60.0
"""How long mpiexec may take to start the relays: tenths of a second, more on a busy machine."""

_POLL_SECONDS = 0.1
"""How often to look whether mpiexec has ended the world, while a case runs."""

_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108


@dataclass(frozen=True, slots=True)
class Launcher:
    """How one library's mpiexec is called. `program` lies beside the interpreter of the environment under test.

    `environment` holds variables for mpiexec and for the ranks; "{folder}" in a value is the launch's own directory.
    `private`: it and the ranks get a network of their own, as it listens on every interface that there is.
    `leftovers`: patterns of the names in /dev/shm of what a rank that is killed may leave.
    """

    program: str
    options: tuple[str, ...] = ()
    private: bool = False
    environment: Mapping[str, str] = field(default_factory=dict)
    leftovers: tuple[str, ...] = ()

    def command(self, python: str, size: int) -> list[str]:
        """The command that starts `size` processes, up to the processes' own."""
        return [str(Path(python).parent / self.program), *self.options, "-n", str(size)]


LAUNCHERS: Mapping[str, Launcher] = {
    # Its default, Hydra, listens on every interface of the machine; this one has nothing that listens.
    "mpich": Launcher("mpiexec.gforker", environment={"UCX_TLS": "self,sm"}, leftovers=("mpich_shm_*",)),
    "openmpi": Launcher(
        "mpiexec",
        ("--allow-run-as-root", "--oversubscribe", "--bind-to", "none"),
        private=True,
        environment={
            "OMPI_MCA_pml": "ob1",
            "OMPI_MCA_btl": "self,sm",
            "OMPI_MCA_btl_sm_backing_directory": "{folder}",
            "PRTE_MCA_prte_tmpdir_base": "{folder}",
        },
        leftovers=("sm_segment.*",),
    ),
}
"""By the name that `Backend.launcher` gives."""


class LaunchError(Exception):
    """mpiexec has not started the ranks' relays; the text says what it said."""


@dataclass(frozen=True, slots=True)
class Given:
    """What mpiexec gave to one rank: variables, and descriptors that are the holder's. The relay ends with `relay`."""

    environment: Mapping[str, str]
    fds: tuple[int, ...]
    relay: socket.socket


class Launch:
    """One run of mpiexec, and the relays that it started. `folder` is its own, for whatever it writes."""

    def __init__(self, launcher: Launcher, base: Path, python: str, size: int, folder: Path) -> None:
        """Start mpiexec and wait for the relays. Raises `LaunchError`.

        It ends with this thread, however that ends, and the relays with it.
        """
        self.given: dict[int, Given] = {}
        self._launcher = launcher
        self._folder = folder
        self._began = time.time()
        self._log = folder / "log"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(mode=0o700)
        self.environment = {
            "TMPDIR": str(folder),
            **{name: value.format(folder=folder) for name, value in launcher.environment.items()},
        }
        with socket.socket(socket.AF_UNIX) as listener, self._log.open("wb") as log:
            listener.bind(str(folder / "s"))
            listener.listen(size)
            start = "start-private" if launcher.private else "start"
            command = [
                *(sys.executable, "-P", "-S", "-m", "fuzz.ranks.launched", start, str(os.getpid())),
                *launcher.command(python, size),
                *(python, "-P", "-S", "-m", "fuzz.ranks.launched", "relay", str(folder / "s")),
            ]
            self._process = subprocess.Popen(
                command,
                cwd=folder,
                env=zygote.environment(base) | self.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
            try:
                self._welcome(listener, size)
            except BaseException:
                self.end(0.0)
                raise

    def killed(self) -> bool:
        """Whether something from outside has killed mpiexec; by other signals some end themselves after MPI_Abort."""
        return self._process.poll() == -signal.SIGKILL

    def aborted(self) -> bool:
        """Whether mpiexec has ended a relay, as it does after MPI_Abort."""
        relays = [given.relay for given in self.given.values()]
        return bool(select.select(relays, [], [], 0.0)[0])

    def end(self, grace: float) -> None:
        """Let mpiexec end by itself, then after `grace` seconds kill it, and remove what it and its ranks left."""
        for given in self.given.values():
            given.relay.close()
            for fd in given.fds:
                os.close(fd)
        self.given = {}
        if grace > 0:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(grace)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)
        self._sweep()

    def forget(self, pids: Sequence[int]) -> None:
        """Remove the names of the shared memory of ranks that have opened their world: nobody looks for it any more,
        and a rank that is killed would leave it.
        """
        names = [name for pid in pids for name in _mapped_by(Path(f"/proc/{pid}/maps"))]
        for path in set(names):
            if path.parent == _SHARED_MEMORY and any(path.match(pattern) for pattern in self._launcher.leftovers):
                path.unlink(missing_ok=True)

    def _welcome(self, listener: socket.socket, size: int) -> None:
        limit = time.monotonic() + LAUNCH_SECONDS
        ended = os.pidfd_open(self._process.pid)
        try:
            while len(self.given) < size:
                wait = max(limit - time.monotonic(), 0.0)
                ready = select.select([listener.fileno(), ended], [], [], wait)[0]
                if listener.fileno() not in ready:
                    how = "mpiexec ended" if ready else f"no word of a rank within {LAUNCH_SECONDS:.0f} s"
                    raise LaunchError(f"{how}: {zygote.tail(self._log, 2000).strip() or 'it said nothing'}")
                relay, _ = listener.accept()
                message, fds = wire.receive_with_fds(relay, max_fds=launched.MAX_FDS, deadline=limit)
                if message is None:
                    relay.close()  # It ended at once: mpiexec will say so.
                else:
                    self.given[message["rank"]] = Given(message["environment"], tuple(fds), relay)
        except (OSError, wire.WireError) as error:
            raise LaunchError(f"a relay did not say what it was given: {error}") from error
        finally:
            os.close(ended)

    def _sweep(self) -> None:
        """Remove from /dev/shm what our ranks left: nobody has it mapped, and it is no older than this launch."""
        left = [path for pattern in self._launcher.leftovers for path in _SHARED_MEMORY.glob(pattern)]
        ours = {path for path in left if _born_since(path, self._began)}
        if ours:
            for path in ours - _mapped():
                path.unlink(missing_ok=True)


def _born_since(path: Path, began: float) -> bool:
    try:
        found = path.stat()
    except FileNotFoundError:
        return False
    return found.st_uid == os.getuid() and found.st_ctime >= began - 1.0


def _mapped() -> set[Path]:
    """Files that some process of this user has mapped."""
    return {path for maps in Path("/proc").glob("[0-9]*/maps") for path in _mapped_by(maps)}


def _mapped_by(maps: Path) -> list[Path]:
    try:
        lines = maps.read_text().splitlines()
    except OSError:
        return []  # It ended meanwhile, or is another user's.
    return [Path(fields[5]) for fields in (line.split(maxsplit=5) for line in lines) if len(fields) > 5]


class _Rank(RankActor):
    """The supervisor of one rank, whose process takes the place of a relay."""

    def __init__(self) -> None:
        super().__init__()
        self.pid = 0
        self.environment: Mapping[str, str] = {}
        self.fds: tuple[int, ...] = ()

    def _fork(self, base: Path, python: str, config: ChildConfig) -> _Child:
        child = super()._fork(base, python, config)
        launched.hand_over(child.sock, self.environment, self.fds)
        self.pid = child.pid
        return child


class LaunchActor:
    """Supervises all ranks of a world. Ray calls one method at a time; none of them raises for what a rank does."""

    def __init__(self, launcher: str, size: int) -> None:
        self._launcher = LAUNCHERS[launcher]
        self._ranks = [_Rank() for _ in range(size)]
        self._threads = concurrent.futures.ThreadPoolExecutor(size)
        self._launch: Launch | None = None

    def info(self) -> dict[str, Any]:
        """Where this actor is, as `RankActor.info` says it."""
        return self._ranks[0].info()

    def start(self, base: str, python: str, configs: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Run mpiexec, and have a new process for each rank open the world. `base` and `python`: as in `RankActor`."""
        self.stop()
        folder = Path(configs[0]["folder"])
        folder.mkdir(parents=True, exist_ok=True)
        try:
            self._launch = Launch(self._launcher, Path(base), python, len(self._ranks), folder / "mpiexec")
        except (LaunchError, OSError) as error:
            text = f"mpiexec did not start the ranks: {error}"
            return [Observation(rank, Status.LOST, error=text).to_json() for rank in range(len(self._ranks))]
        configs = [config | {"launched": True} for config in configs]
        for number, rank in enumerate(self._ranks):
            given = self._launch.given[number]
            rank.environment, rank.fds = {**self._launch.environment, **given.environment}, given.fds
        opened = list(self._threads.map(lambda rank, config: rank.start(base, python, config), self._ranks, configs))
        if all(seen["status"] == Status.OK for seen in opened):
            self._launch.forget([rank.pid for rank in self._ranks])
        return opened

    def run(self, case_text: str, deadline: float, patience: float) -> list[dict[str, Any]]:
        """Run one case on every rank; of ranks that raise and make others wait see `Crew.run`."""
        if self._launch is not None and self._launch.killed():
            text = "mpiexec was killed between two cases"
            return [Observation(rank, Status.LOST, error=text).to_json() for rank in range(len(self._ranks))]
        launch = self._launch
        calls = {self._threads.submit(rank.run, case_text, deadline): rank for rank in self._ranks}
        pending = set(calls)
        cut: set[concurrent.futures.Future[dict[str, Any]]] = set()
        killed: set[concurrent.futures.Future[dict[str, Any]]] = set()
        quiet_since = time.monotonic()
        while pending:
            done, pending = concurrent.futures.wait(
                pending, timeout=_POLL_SECONDS, return_when=concurrent.futures.FIRST_COMPLETED
            )
            if done:
                quiet_since = time.monotonic()
            raised = [call for call in calls if call.done() and call.result()["status"] == Status.RAISED]
            if pending and raised and not cut and time.monotonic() - quiet_since > patience:
                cut = pending
                for call in raised:
                    calls[call].forsake()
            if pending and not killed and launch is not None and launch.aborted():
                # A library may leave it to mpiexec to end the ranks, the one that calls MPI_Abort included.
                killed = concurrent.futures.wait(pending, timeout=RAISED_SECONDS).not_done
                for call in killed:
                    calls[call].forsake()
        found = [Observation.from_json(call.result()) for call in calls]
        found = [_consequence(seen) if call in cut else seen for call, seen in zip(calls, found, strict=True)]
        if launch is not None and launch.killed():
            found = [_lost(seen) if seen.status in (Status.DIED, Status.RAISED) else seen for seen in found]
        elif killed:
            found = _aborted(found, [call in killed for call in calls])
        return [seen.to_json() for seen in found]

    def stop(self) -> None:
        """Kill every rank, and mpiexec."""
        for rank in self._ranks:
            rank.stop()
        self._end_launch(0.0)

    def leave(self, grace: float) -> None:
        """Have the ranks close their world together, kill after `grace` seconds, and remove the world's folder."""
        list(self._threads.map(lambda rank: rank.leave(grace), self._ranks))
        self._end_launch(grace)

    def _end_launch(self, grace: float) -> None:
        launch, self._launch = self._launch, None
        if launch is not None:
            launch.end(grace)


def _consequence(seen: Observation) -> Observation:
    """What a rank says that waited for one that had raised and was ended."""
    return replace(seen, status=Status.CUT_SHORT) if seen.status in (Status.RAISED, Status.HUNG) else seen


def _aborted(found: list[Observation], killed: Sequence[bool]) -> list[Observation]:
    """Tell the rank that had mpiexec end the world, which says so, from those that were ended with it."""
    ended = [seen.rank for seen, was in zip(found, killed, strict=True) if was and seen.status is Status.DIED]
    callers = [rank for rank in ended if "abort" in found[rank].output.lower()]
    if not callers and all(seen.rank in ended for seen in found if seen.status is Status.DIED):
        callers = ended
    others = [rank for rank in ended if rank not in callers]
    return [
        replace(seen, signal="MPI_Abort", order=0)
        if seen.rank in callers
        else replace(seen, status=Status.CUT_SHORT, signal="")
        if seen.rank in others
        else seen
        for seen in found
    ]


def _lost(seen: Observation) -> Observation:
    return replace(seen, status=Status.LOST, error=f"mpiexec was killed; then: {seen.error or seen.signal}")


class LaunchedCrew:
    """The one actor of a world that mpiexec starts, with the interface of `fuzz.ranks.crew.Crew`."""

    def __init__(self, size: int, launcher: str) -> None:
        self.size = size
        self.gpus_per_rank = 0
        self._launcher = launcher
        self._actor: Any = None
        self._place: Place | None = None

    @property
    def places(self) -> list[Place]:
        """Where the ranks are: all on one node."""
        return [self._place] * self.size if self._place is not None else []

    def fill(self) -> list[Observation]:
        """Have an actor that lives. Returns LOST observations if that fails, nothing if not."""
        import ray

        if self._actor is None:
            remote: Any = ray.remote(LaunchActor)
            self._actor = remote.options(num_cpus=CPUS_PER_RANK * self.size).remote(self._launcher, self.size)
        try:
            found = ray.get(self._actor.info.remote(), timeout=PLACE_SECONDS)
        except ray.exceptions.RayError as error:
            return self._lost(error)
        self._place = Place(found["address"], found["port"], ())
        return []

    def ask(self, method: str, arguments: Sequence[tuple[Any, ...]], seconds: float) -> list[Observation]:
        """Call `start`, the one method that has arguments by rank: a base, an interpreter, a configuration."""
        base, python, _ = arguments[0]
        configs = [config for _, _, config in arguments]
        return self._observations(lambda actor: getattr(actor, method).remote(base, python, configs), seconds)

    def run(self, case_text: str, deadline: float, patience: float = RAISED_SECONDS) -> list[Observation]:
        """Have every rank run one case; as `Crew.run`."""
        return self._observations(lambda actor: actor.run.remote(case_text, deadline, patience), deadline)

    def stop(self) -> None:
        """Have the actor end the ranks and mpiexec, without waiting for it."""
        if self._actor is not None:
            self._actor.stop.remote()

    def leave(self, grace: float) -> bool:
        """Have the actor end them within about `grace` seconds; return whether it is sound."""
        import ray

        if self._actor is not None:
            try:
                ray.get(self._actor.leave.remote(grace), timeout=2 * grace + MARGIN_SECONDS)
            except ray.exceptions.RayError as error:
                self._lost(error)
        return self._actor is not None

    def disband(self) -> None:
        """End the actor, which ends everything."""
        import ray

        actor, self._actor = self._actor, None
        if actor is not None:
            ray.kill(actor)

    def _observations(self, call: Callable[[Any], Any], seconds: float) -> list[Observation]:
        import ray

        if self._actor is None:
            return self._lost(RuntimeError("no actor"))
        try:
            replies = ray.get(call(self._actor), timeout=seconds + MARGIN_SECONDS)
        except ray.exceptions.RayError as error:
            return self._lost(error)
        return [Observation.from_json(reply) for reply in replies]

    def _lost(self, error: Exception) -> list[Observation]:
        """Give the actor up; say so for every rank."""
        self.disband()
        name = type(error).__name__
        text = f"the supervisor of the world is gone: {str(error).strip() or name}"
        return [Observation(rank, Status.LOST, error=text, error_type=name) for rank in range(self.size)]
