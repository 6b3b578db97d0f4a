"""A fork server: one for each node and interpreter, with torch imported before it forks a rank.

The server half (`main`) runs under the interpreter of the environment under test and has one thread, or
forking would not be safe. The client half (`connect`) is what a supervisor calls; the first one that needs
a server starts it.

A connection has one child at a time. It sends `{"fork": <ChildConfig>}` with the child's end of a socket
pair, and gets `{"forked": pid}`; `{"signal": number}` sends the child a signal. Unasked it gets
`{"exited": pid, "status": <wait status>, "order": n}` when its child ends, and `{"peer": world}` when
another rank of the same world on this node did. A child that a supervisor kills is no news to its peers,
and is not counted in `order`, unless the signal comes with `"told": true`.
"""

from __future__ import annotations

import contextlib
import fcntl
import gc
import hashlib
import importlib
import os
import resource
import select
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from fuzz.ranks import child, wire

PRELOADED = ("numpy", "torch", "torch.distributed", "fuzz.ranks.execute")
"""What every child finds imported. Nothing here may start a thread, or look at a world's environment."""

START_SECONDS = 120.0
"""How long importing `PRELOADED` may take: the first time, from a cold disk."""

LINGER_SECONDS = 10.0
"""How long a server without connections waits for the next world before it ends."""

_PACKAGES = ("corpus", "fuzz", "oracles")

_RAYS_OWN = ("RAY_", "PYTHONBREAKPOINT", "SPT_NOENV")
"""How the names of the variables begin that Ray adds to its workers' environment."""

_ENVIRONMENT = {
    # Ranks share few cores, and one thread is what makes the zygote safe to fork.
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    # Big buffers come from memory that was used before, not from fresh pages: four times as fast at 24 MiB.
    "MALLOC_MMAP_THRESHOLD_": str(2**30),
    "MALLOC_TRIM_THRESHOLD_": str(2**32),
}


class ZygoteError(Exception):
    """The fork server cannot be started or is gone; the text says what it said."""


def home(base: Path, python: str) -> Path:
    """Return the folder of the server for the interpreter `python`, and of the worlds forked by it."""
    return base / hashlib.sha256(python.encode()).hexdigest()[:12]


def link_code(base: Path) -> Path:
    """Return a folder that has our packages and nothing else, to put on another interpreter's import path.

    The folder that holds them may be a site-packages, which would shadow the environment under test.
    """
    code = base / "code"
    code.mkdir(parents=True, exist_ok=True)
    source = Path(__file__).resolve().parents[2]
    for package in _PACKAGES:
        with contextlib.suppress(FileExistsError):
            (code / package).symlink_to(source / package, target_is_directory=True)
    return code


def environment(base: Path) -> dict[str, str]:
    """Return the variables for a process under the interpreter of an environment under test: ours, without Ray's."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(_RAYS_OWN)}
    paths = [str(link_code(base)), *(path for path in inherited.get("PYTHONPATH", "").split(os.pathsep) if path)]
    return inherited | _ENVIRONMENT | {"PYTHONPATH": os.pathsep.join(dict.fromkeys(paths))}


def connect(base: Path, python: str) -> socket.socket:
    """Connect to this node's fork server for the interpreter `python`; start it where there is none.

    `base` is a directory that only this user may enter; it is made if it is not there. The server ends
    with the calling process's parent (Ray's raylet). Raises `ZygoteError` when it cannot import what
    ranks need, and `OSError` when the directory cannot be used.
    """
    folder = home(base, python)
    log = folder / "log"
    sock = socket.socket(socket.AF_UNIX)
    with _locked(base):
        folder.mkdir(exist_ok=True)
        try:
            sock.connect(str(folder / "socket"))
        except (FileNotFoundError, ConnectionRefusedError):
            _start(base, python)
            sock.connect(str(folder / "socket"))
    try:
        hello = wire.receive(sock, deadline=time.monotonic() + START_SECONDS)
    except (ConnectionError, TimeoutError, wire.WireError) as error:
        hello = None
        reason = str(error)
    else:
        reason = "it ended"
    if hello is None:
        sock.close()
        said = tail(log, 2000).strip()
        raise ZygoteError(f"the fork server under {python} did not start ({reason}): {said}")
    return sock


@cache
def _preload(executor: str, backend: str) -> None:
    """Have the executor import what children of this backend need besides, once for all of them.

    What goes wrong here goes wrong in the child too, which can say so.
    """
    hook = getattr(sys.modules.get(executor.partition(":")[0]), "preload", None)
    if hook is not None:
        with contextlib.suppress(Exception):
            hook(backend)


def tail(path: Path, size: int) -> str:
    """Return the last `size` bytes of a file as text, "" if there is none."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - size))
            return file.read().decode(errors="replace")
    except FileNotFoundError:
        return ""


@contextlib.contextmanager
def _locked(base: Path) -> Iterator[None]:
    """Hold the lock of the node's ranks directory, which exists meanwhile."""
    while True:
        base.mkdir(mode=0o700, parents=True, exist_ok=True)
        fd = os.open(base, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            if os.fstat(fd).st_uid != os.getuid():
                raise PermissionError(f"{base} belongs to another user")
            # The last server removes the directory; whoever waited meanwhile holds a lock on nothing.
            if _is_at(fd, base):
                yield
                return
        finally:
            os.close(fd)


def _is_at(fd: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), path.stat())
    except FileNotFoundError:
        return False


def _start(base: Path, python: str) -> None:
    """Start the server. It inherits a socket that listens already, so that nobody has to poll."""
    folder = home(base, python)
    (folder / "socket").unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX) as listener, (folder / "log").open("wb") as log:
        listener.bind(str(folder / "socket"))
        listener.listen(128)
        # -P: the folder that it runs in is no part of the import path.
        command = [
            python,
            "-P",
            "-m",
            "fuzz.ranks.zygote",
            str(listener.fileno()),
            str(os.getppid()),
            str(folder),
        ]
        try:
            starter = subprocess.Popen(
                command,
                cwd=folder,
                env=environment(base),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=[listener.fileno()],
                start_new_session=True,
            )
        except OSError as error:
            raise ZygoteError(f"cannot run {python}: {error}") from error
    if starter.wait() != 0:
        raise ZygoteError(f"the fork server under {python} did not start: {tail(folder / 'log', 2000).strip()}")


@dataclass(slots=True, eq=False)
class _Client:
    """A supervisor's connection; `world` is the last one that it had a child in."""

    sock: socket.socket
    world: str = ""


@dataclass(slots=True, eq=False)
class _Child:
    pid: int
    pidfd: int
    world: str
    client: _Client
    killed: bool = False


class _Zygote:
    """The server's state. One thread; everything happens between two selects."""

    def __init__(self, listener: socket.socket, watched: int, folder: Path) -> None:
        self._listener = listener
        self._watched = watched
        self._folder = folder
        self._clients: set[_Client] = set()
        self._children: dict[int, _Child] = {}
        self._deaths: dict[str, int] = {}
        self._selector = selectors.DefaultSelector()
        self._selector.register(listener, selectors.EVENT_READ)
        self._selector.register(watched, selectors.EVENT_READ)

    def serve(self) -> None:
        """Serve until the watched process ends, or nobody has been connected for a while."""
        alone_since = time.monotonic()
        while True:
            for key, _ in self._selector.select(timeout=1.0):
                if key.fileobj is self._listener:
                    self._accept()
                elif key.fileobj == self._watched:
                    return
                elif isinstance(key.data, _Child):
                    self._reap(key.data)
                elif key.data in self._clients:
                    self._answer(key.data)
            if self._clients or self._children:
                alone_since = time.monotonic()
            elif not self._folder.exists() or time.monotonic() - alone_since > LINGER_SECONDS:
                with _locked(self._folder.parent):
                    # Clients connect under the same lock, so nobody is left waiting.
                    if not select.select([self._listener], [], [], 0)[0]:
                        self.remove()
                        return

    def end_children(self) -> None:
        for pid in self._children:
            _kill_group(pid)

    def remove(self) -> None:
        """Remove the server's folder, and with the last one what contains it."""
        shutil.rmtree(self._folder, ignore_errors=True)
        base = self._folder.parent
        if {entry.name for entry in base.iterdir()} <= {"code"}:
            shutil.rmtree(base, ignore_errors=True)
            with contextlib.suppress(OSError):
                base.parent.rmdir()  # A cluster of our own keeps more there, and removes it itself.

    def _accept(self) -> None:
        sock, _ = self._listener.accept()
        client = _Client(sock)
        self._clients.add(client)
        self._selector.register(sock, selectors.EVENT_READ, client)
        _tell(client, {"ready": os.getpid()})

    def _answer(self, client: _Client) -> None:
        try:
            message, fds = wire.receive_with_fds(client.sock, max_fds=1)
        except (ConnectionError, wire.WireError):
            message, fds = None, []
        if message is None:
            self._drop(client)
        elif "fork" in message:
            self._fork(client, child.ChildConfig.from_json(message["fork"]), socket.socket(fileno=fds[0]))
        elif "signal" in message:
            for one in self._of(client):
                if message["signal"] == signal.SIGKILL:
                    one.killed = not message.get("told", False)
                    _kill_group(one.pid)
                else:
                    os.kill(one.pid, message["signal"])

    def _fork(self, client: _Client, config: child.ChildConfig, sock: socket.socket) -> None:
        _preload(config.executor, config.backend)
        me = os.getpid()
        pid = os.fork()
        if pid == 0:
            self._close_all()
            child.main(config, sock, me)
        sock.close()
        one = _Child(pid, os.pidfd_open(pid), config.world, client)
        self._children[pid] = one
        self._selector.register(one.pidfd, selectors.EVENT_READ, one)
        client.world = config.world
        current = {other.world for other in self._clients}
        self._deaths = {world: count for world, count in self._deaths.items() if world in current}
        _tell(client, {"forked": pid})
        if config.world in self._deaths:
            _tell(client, {"peer": config.world})

    def _reap(self, one: _Child) -> None:
        # While it is not reaped, its process number and its group's are nobody else's.
        _kill_group(one.pid)
        _, status = os.waitpid(one.pid, 0)
        self._selector.unregister(one.pidfd)
        os.close(one.pidfd)
        del self._children[one.pid]
        order = self._deaths.get(one.world, 0)
        if not one.killed:
            self._deaths[one.world] = order + 1
            for client in self._clients:
                if client is not one.client and client.world == one.world:
                    _tell(client, {"peer": one.world})
        _tell(one.client, {"exited": one.pid, "status": status, "order": order})

    def _drop(self, client: _Client) -> None:
        self._clients.discard(client)
        self._selector.unregister(client.sock)
        client.sock.close()
        for one in self._of(client):
            _kill_group(one.pid)

    def _of(self, client: _Client) -> list[_Child]:
        return [one for one in self._children.values() if one.client is client]

    def _close_all(self) -> None:
        """In a new child: let go of everything that is the server's, or its ends of file never come."""
        self._selector.close()
        self._listener.close()
        os.close(self._watched)
        for client in self._clients:
            client.sock.close()
        for one in self._children.values():
            os.close(one.pidfd)


def _kill_group(pid: int) -> None:
    """Kill a child of ours and what it started. It is not reaped yet, so the number is still its own."""
    os.kill(pid, signal.SIGKILL)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)  # No such group: it was ended before it made one.


def _tell(client: _Client, message: Mapping[str, Any]) -> None:
    # A supervisor that is gone is noticed at its end of file.
    with contextlib.suppress(OSError):
        wire.send(client.sock, message)


def main(listener_fd: int, watched_pid: int, folder: Path) -> None:
    """Run the server on a socket that listens already, until process `watched_pid` ends."""
    watched = os.pidfd_open(watched_pid)
    # Leave the supervisor that started us: Ray kills the direct children of a worker that ends.
    if os.fork():
        os._exit(0)
    # A crash is reported by its signal; writing out a core takes seconds.
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for module in PRELOADED:
        importlib.import_module(module)
    sys.modules["torch"].set_num_threads(1)
    gc.collect()
    gc.freeze()
    server = _Zygote(socket.socket(fileno=listener_fd), watched, folder)
    try:
        server.serve()
    finally:
        server.end_children()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
