"""What runs inside a rank's process: the executor, one case after another until end of file.

A fork of `fuzz.ranks.zygote`. It never imports Ray or Hypothesis: they start threads, and they are not
part of the environment under test.
"""

from __future__ import annotations

import faulthandler
import importlib
import mmap
import os
import signal
import socket
import sys
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any, NoReturn, Protocol

from fuzz.ranks import launched, wire
from fuzz.ranks.process import die_with_parent
from oracles.observation import Observation, Status

_CALL_BYTES = 4


class Executor(Protocol):
    """What a rank runs. The class is named "module:Class" and called with keywords: backend, rank, size,
    init_method, device (its index among the visible ones, or None) and timeout (seconds). Calling it opens
    the world; it may raise.
    """

    def run(self, case_text: str, begun: Callable[[int], None]) -> Observation:
        """Run one case, and call `begun(i)` before its call number i."""

    def close(self) -> None:
        """Leave the world."""


@dataclass(frozen=True, slots=True)
class ChildConfig:
    """Everything that a rank's process needs to know to open its world.

    `world` names one building of one world; `environment` holds variables to set, or to unset where the
    value is None; `path` is added to the import path; `timeout` is in seconds; `folder` is where the
    supervisor finds this rank's files; `launched`: the supervisor sends first what an mpiexec gave.
    """

    world: str
    rank: int
    size: int
    backend: str
    executor: str
    init_method: str
    device: int | None
    environment: tuple[tuple[str, str | None], ...]
    path: tuple[str, ...]
    timeout: float
    folder: str
    launched: bool = False

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-able dictionary; `from_json` is its inverse."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> ChildConfig:
        """Rebuild a configuration from `to_json`'s dictionary."""
        known = dict(data)
        known["environment"] = tuple((name, value) for name, value in known["environment"])
        known["path"] = tuple(known["path"])
        return cls(**known)

    @property
    def stack_file(self) -> Path:
        """Where Python stacks go: on SIGUSR2, and when a signal ends the process."""
        return Path(self.folder, f"{self.rank}.stack")

    @property
    def output_file(self) -> Path:
        """Where the process's standard output and error go."""
        return Path(self.folder, f"{self.rank}.output")

    @property
    def call_file(self) -> Path:
        """The memory shared with the supervisor that holds the last call begun."""
        return Path(self.folder, f"{self.rank}.call")


class LastCall:
    """The index of the last call begun (-1: none), in memory that outlives the process that wrote it."""

    def __init__(self, path: Path) -> None:
        """Map the file, and create it where there is none. Raises `OSError`."""
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.ftruncate(fd, _CALL_BYTES)
            self._memory = mmap.mmap(fd, _CALL_BYTES)
        finally:
            os.close(fd)

    def set(self, index: int) -> None:
        """Record that call `index` begins."""
        self._memory[:] = index.to_bytes(_CALL_BYTES, "little", signed=True)

    def get(self) -> int:
        """Return the last index recorded."""
        return int.from_bytes(self._memory[:], "little", signed=True)


def main(config: ChildConfig, sock: socket.socket, parent: int) -> NoReturn:
    """Serve cases in a process that was just forked by `parent`, then end it."""
    die_with_parent(parent)
    # A group of its own, so that what the library starts can be ended with it.
    os.setpgid(0, 0)
    status = 1
    try:
        _redirect_output(config.output_file)
        with config.stack_file.open("w") as stacks:
            faulthandler.enable(stacks, all_threads=True)
            faulthandler.register(signal.SIGUSR2, stacks, all_threads=True)
            status = _serve(config, sock)
    except SystemExit as leaving:
        status = leaving.code if isinstance(leaving.code, int) else int(leaving.code is not None)
    except BaseException:
        # The last thing this process does: the supervisor shows its output.
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        # No exit handlers: they belong to the zygote, and a library's may wait for ranks that are gone.
        os._exit(status & 0xFF)


def _redirect_output(path: Path) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o600)
    os.dup2(fd, 1)
    os.dup2(fd, 2)
    os.close(fd)
    _line_buffered(sys.stdout)
    _line_buffered(sys.stderr)


def _line_buffered(stream: IO[str]) -> None:
    # What is still in a buffer when the process dies is lost.
    getattr(stream, "reconfigure", lambda **_: None)(line_buffering=True)


def _serve(config: ChildConfig, sock: socket.socket) -> int:
    """Open the world, answer cases until end of file and return the exit status."""
    if config.launched:
        launched.adopt(sock, os.getppid())
    for name, value in config.environment:
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    sys.path += [entry for entry in config.path if entry not in sys.path]
    last_call = LastCall(config.call_file)

    try:
        executor = _open(config)
    except _OpeningError as failure:
        wire.send(sock, failure.observation.to_json())
        return 1
    wire.send(sock, Observation(config.rank, Status.OK).to_json())

    while (message := _next(sock)) is not None:
        last_call.set(-1)
        if os.fstat(1).st_size:
            os.ftruncate(1, 0)
        try:
            observation = executor.run(message["case"], last_call.set)
        except Exception:
            # The executor reports what the library raises; what it raises itself is our own defect.
            observation = Observation(config.rank, Status.LOST, call=last_call.get(), error=traceback.format_exc())
        wire.send(sock, observation.to_json())
    executor.close()
    return 0


def _next(sock: socket.socket) -> dict[str, Any] | None:
    try:
        return wire.receive(sock)
    except ConnectionResetError:
        # The supervisor is gone, without having read our last reply.
        return None


class _OpeningError(Exception):
    def __init__(self, observation: Observation) -> None:
        self.observation = observation


def _open(config: ChildConfig) -> Executor:
    """Import the executor and open the world. Raises `_OpeningError` with what to report."""
    module, _, name = config.executor.partition(":")
    try:
        factory = getattr(importlib.import_module(module), name)
    except Exception as error:
        # An environment that lacks something is not the library's fault.
        text = f"cannot import {config.executor} under {sys.executable}: {error}"
        raise _OpeningError(_failure(config.rank, Status.LOST, error, text)) from error
    try:
        executor: Executor = factory(
            backend=config.backend,
            rank=config.rank,
            size=config.size,
            init_method=config.init_method,
            device=config.device,
            timeout=config.timeout,
        )
    except Exception as error:
        text = f"opening the world: {error}"
        raise _OpeningError(_failure(config.rank, Status.RAISED, error, text)) from error
    return executor


def _failure(rank: int, status: Status, error: Exception, text: str) -> Observation:
    return Observation(
        rank,
        status,
        error=text,
        error_type=type(error).__name__,
        stack="".join(traceback.format_exception(error)),
    )
