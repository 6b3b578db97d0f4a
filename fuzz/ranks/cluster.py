"""The Ray cluster that ranks are placed on: a given one as it is, or one of our own, closed and quiet."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import secrets
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from fuzz.ranks import zygote
from fuzz.ranks.crew import Crew

START_SECONDS = 120.0
"""How long Ray may take to start: some seconds, more on a cold disk."""

REACH_SECONDS = 10.0
"""How long a given cluster may take to accept a connection."""

END_SECONDS = 20.0
"""How long the head may take to end everything."""

_PLACE_BYTES = 20
"""How long a temporary directory's name may be: a Unix socket's has 107 bytes at most, and 87 are added."""

_TOKEN = secrets.token_hex(32)
"""One a process: Ray reads a process's token once, and a second cluster must know the same."""

_CLOSED: dict[str, str | None] = {
    # As if on a desktop, where Ray keeps to the loopback interface.
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    "RAY_AUTH_MODE": "token",
    "RAY_AUTH_TOKEN": None,
    "RAY_ADDRESS": None,
    "RAY_USAGE_STATS_ENABLED": "0",
}


_NOT_INHERITED = ("RAY_", "PYTHONOPTIMIZE", "PYTHONSTARTUP", "PYTHONINSPECT")


class ClusterError(Exception):
    """Ray could not be started, reached or ended; the text says why."""


class Cluster:
    """A connection of this process to Ray. A context manager; `connect` makes one.

    `directory` is private to this user. A cluster of our own keeps everything that it writes there, and
    each node of a given one makes a directory of the same name for as long as ranks run on it.
    """

    def __init__(self, directory: Path) -> None:
        """Use `connect` instead."""
        self.directory = directory
        self._head: subprocess.Popen[bytes] | None = None
        self._undo = contextlib.ExitStack()
        self._spare: dict[tuple[int, int], list[Crew]] = {}

    @classmethod
    def connect(cls, address: str | None, gpus: int | None = None) -> Cluster:
        """Connect to the Ray cluster at `address`, or start one on this machine where that is None.

        A given cluster is used as it is; its nodes must be able to import our packages (installed there, or
        on their PYTHONPATH from a shared disk), in the versions of this process. A cluster of our own
        listens on the loopback interface only, asks for a token, has no dashboard, sends no usage
        statistics, and is gone with this process, however that ends. `gpus` is the number of GPUs that it
        declares, by default those of the machine.

        Raises `ClusterError` when there is no cluster to be had, or this process is in one already.
        """
        ray: Any = sys.modules.get("ray")
        if ray is not None and ray.is_initialized():
            raise ClusterError("this process is connected to a Ray cluster already")
        place = tempfile.gettempdir()
        place = place if len(os.fsencode(place)) <= _PLACE_BYTES else "/tmp"  # noqa: S108
        directory = Path(tempfile.mkdtemp(prefix="cclfuzz-", dir=place))
        cluster = cls(directory)
        try:
            if address is None:
                address = cluster._start(gpus)
            cluster._join(address)
        except BaseException:
            cluster._end()
            raise
        return cluster

    def crew(self, size: int, gpus_per_rank: int) -> Crew:
        """Return the actors for a world: those of one that was closed, or new ones."""
        spare = self._spare.get((size, gpus_per_rank))
        return spare.pop() if spare else Crew(size, gpus_per_rank)

    def keep(self, crew: Crew) -> None:
        """Keep the actors of a closed world for the next one: a new one takes a second to start."""
        self._spare.setdefault((crew.size, crew.gpus_per_rank), []).append(crew)

    def close(self) -> None:
        """Disconnect, and where the cluster is ours wait until its last process and file are gone.

        Raises `ClusterError` if they are not.
        """
        import ray

        ray.shutdown()
        self._end()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _start(self, gpus: int | None) -> str:
        """Start the head process and return Ray's address."""
        fd = os.open(self.directory / "token", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(fd, "w") as token:
            token.write(_TOKEN)
        variables = {**_CLOSED, "RAY_AUTH_TOKEN_PATH": str(self.directory / "token")}
        self._undo.enter_context(_variables(variables))
        paths = [str(zygote.link_code(self.directory)), os.environ.get("PYTHONPATH", "")]
        environment = {
            # What a person has set for another cluster, or for Python, is not for this one: some of it makes Ray hang.
            **{name: value for name, value in os.environ.items() if not name.startswith(_NOT_INHERITED)},
            **{name: value for name, value in variables.items() if value is not None},
            "PYTHONPATH": os.pathsep.join(path for path in paths if path),
            # Ranks inherit it, and would be slower than what they are compared with.
            "RAY_worker_niceness": "0",
        }
        command = [sys.executable, "-P", "-m", "fuzz.ranks.head", str(self.directory), str(os.getpid())]
        log = self.directory / "head.log"
        with log.open("wb") as errors:
            self._head = subprocess.Popen(
                command + ([] if gpus is None else [str(gpus)]),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=environment,
                start_new_session=True,
            )
        self._undo.enter_context(_closed_ray())  # It imports ray: meanwhile the head does the same.
        assert self._head.stdout is not None
        with self._head.stdout as output:
            line = _first_line(output.fileno(), time.monotonic() + START_SECONDS)
        if not line:
            raise ClusterError(f"Ray did not start: {zygote.tail(log, 2000).strip() or 'no word from it'}")
        return str(json.loads(line)["address"])

    def _join(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        if port.isdigit() and not address.startswith("ray://"):
            # Ray itself would go on trying for a quarter of an hour.
            try:
                socket.create_connection((host.strip("[]"), int(port)), timeout=REACH_SECONDS).close()
            except OSError as error:
                raise ClusterError(f"nothing answers at {address}: {error}") from error
        import ray

        before = signal.getsignal(signal.SIGTERM)
        try:
            # Ray puts this process's working directory on its workers' path, where a person's own "fuzz" would be ours.
            with contextlib.chdir(self.directory):
                ray.init(address=address, logging_level=40, log_to_driver=False)
        except (ConnectionError, RuntimeError, ValueError) as error:
            raise ClusterError(f"cannot connect to Ray at {address}: {error}") from error
        finally:
            # Ray puts a handler of its own there, which leaves no time to end anything.
            if threading.current_thread() is threading.main_thread():
                signal.signal(signal.SIGTERM, before)

    def _end(self) -> None:
        """Have the head end everything, wait for it, and remove what is left."""
        self._undo.close()
        if self._head is not None:
            assert self._head.stdin is not None
            with contextlib.suppress(BrokenPipeError), self._head.stdin as word:
                word.write(b"end")
            try:
                self._head.wait(END_SECONDS)
            except subprocess.TimeoutExpired as error:
                raise ClusterError(f"Ray's processes did not end within {END_SECONDS:.0f} s") from error
        # A head that was killed has left it.
        shutil.rmtree(self.directory, ignore_errors=True)


@contextlib.contextmanager
def _variables(wanted: dict[str, str | None]) -> Iterator[None]:
    """Set variables of this process, unset those that are None, and put back what they were."""
    before = {name: os.environ.get(name) for name in wanted}
    _set_variables(wanted)
    try:
        yield
    finally:
        _set_variables(before)


def _set_variables(wanted: dict[str, str | None]) -> None:
    for name, value in wanted.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


@contextlib.contextmanager
def _closed_ray() -> Iterator[None]:
    """Have Ray in this process follow `_CLOSED`, which it has not read if it was imported before."""
    from ray._private import ray_constants

    core: Any = importlib.import_module("ray._raylet")
    loopback = ray_constants.ENABLE_RAY_CLUSTER
    token = core.get_authentication_mode() == core.AuthenticationMode.TOKEN
    ray_constants.ENABLE_RAY_CLUSTER = False
    core.Config.initialize(json.dumps({"AUTH_MODE": "token"}))
    try:
        yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = loopback
        if not token:
            core.Config.initialize(json.dumps({"AUTH_MODE": "disabled"}))


def _first_line(fd: int, limit: float) -> bytes:
    """Read a line, and return b"" if it has not come by `limit` on the monotonic clock or never will."""
    line = b""
    while not line.endswith(b"\n"):
        readable, _, _ = select.select([fd], [], [], max(limit - time.monotonic(), 0.0))
        part = os.read(fd, 4096) if readable else b""
        if not part:
            return b""
        line += part
    return line
