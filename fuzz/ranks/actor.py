"""The supervisor of one rank: a Ray actor that stays light and alive when its child does not.

It imports neither torch nor numpy. Its child is forked by the node's zygote; whatever becomes of it, the
supervisor answers with an `Observation`, within the deadline and a few seconds.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import socket
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from fuzz.ranks import process, wire, zygote
from fuzz.ranks.child import ChildConfig, LastCall
from oracles.observation import Observation, Status

PATIENCE_SECONDS = 1.0
"""How long a rank may go on after another one of its world died: enough for the library's own error."""

OPEN_SECONDS = 120.0
"""How long importing the executor and opening the world may take."""

_OUTPUT_BYTES = 4096
_STACK_SECONDS = 1.0
_KILL_SECONDS = 5.0


class RankActor:
    """Supervises one rank. Ray calls one method at a time; none of them raises for what a child does."""

    def __init__(self) -> None:
        self._zygote: tuple[Path, socket.socket] | None = None
        self._child: _Child | None = None
        self._folder: Path | None = None

    def info(self) -> dict[str, Any]:
        """Return where this actor is: its node's address, a port free there now, and its GPUs' numbers."""
        import ray

        util: Any = ray.util
        address = str(util.get_node_ip_address())
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        with socket.socket(family) as probe:
            probe.bind((address, 0))
            port = probe.getsockname()[1]
        return {"address": address, "port": port, "gpus": [str(gpu) for gpu in ray.get_gpu_ids()]}

    def start(self, base: str, python: str, config: dict[str, Any]) -> dict[str, Any]:
        """Replace the child by a new one and have it open its world, which all ranks do together.

        The observation's status is OK when it did. `base` is the directory for this node's zygotes.
        """
        self.stop()
        child_config = ChildConfig.from_json(config)
        try:
            child = self._fork(Path(base), python, child_config)
        except (zygote.ZygoteError, wire.WireError, OSError) as error:
            self._hang_up()
            text = f"no process for rank {child_config.rank}: {error}"
            return Observation(child_config.rank, Status.LOST, error=text).to_json()
        self._child = child
        opened = child.answer(time.monotonic() + OPEN_SECONDS)
        if opened.status is not Status.OK and not opened.error:
            opened = replace(opened, error="while the world was being opened")
        return opened.to_json()

    def run(self, case_text: str, deadline: float) -> dict[str, Any]:
        """Run one case and return the rank's observation, after `deadline` seconds at the latest."""
        child = self._child
        assert child is not None, "start first"
        limit = time.monotonic() + deadline
        child.last_call.set(-1)
        # It may have died or been stopped between two cases, which `answer` finds.
        with contextlib.suppress(ConnectionError, TimeoutError):
            wire.send(child.sock, {"case": case_text}, deadline=limit)
        return child.answer(limit).to_json()

    def forsake(self) -> None:
        """Kill the child and have its peers on this node told, for they wait for what will not come."""
        if self._child is not None:
            self._child.forsake()

    def stop(self) -> None:
        """Kill the child."""
        self._end(0.0)

    def leave(self, grace: float) -> None:
        """Have the child close its world, kill it after `grace` seconds, and remove the world's folder."""
        self._end(grace)
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)  # Another rank may be doing the same.

    def _end(self, grace: float) -> None:
        child, self._child = self._child, None
        if child is not None and not child.end(grace):
            # Its zygote does not answer. A new connection starts from nothing, and this one's end kills.
            self._hang_up()

    def _hang_up(self) -> None:
        if self._zygote is not None:
            self._zygote[1].close()
            self._zygote = None

    def _fork(self, base: Path, python: str, config: ChildConfig) -> _Child:
        folder = zygote.home(base, python)
        # The one it was connected to may have died with another world since.
        if self._zygote is None or self._zygote[0] != folder or _hung_up(self._zygote[1]):
            self._hang_up()
            self._zygote = (folder, zygote.connect(base, python))
        server = self._zygote[1]
        self._folder = Path(config.folder)
        self._folder.mkdir(exist_ok=True)
        config.stack_file.unlink(missing_ok=True)
        config.output_file.unlink(missing_ok=True)
        last_call = LastCall(config.call_file)
        last_call.set(-1)
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                wire.send(server, {"fork": config.to_json()}, [theirs.fileno()])
            pid = _forked(server)
        except BaseException:
            ours.close()
            raise
        return _Child(config, pid, ours, server, last_call)


def _hung_up(sock: socket.socket) -> bool:
    """Whether the other side is gone, whatever it said before."""
    poll = select.poll()
    poll.register(sock, select.POLLRDHUP)
    return bool(poll.poll(0))


def _forked(server: socket.socket) -> int:
    """Return the number of the process just asked for, past whatever the server says of older ones."""
    while True:
        # It may import something first, which is slow on a busy machine.
        message = wire.receive(server, deadline=time.monotonic() + zygote.START_SECONDS)
        if message is None:
            raise zygote.ZygoteError("the fork server ended")
        if "forked" in message:
            return int(message["forked"])


class _Child:
    """The process of one rank, seen from outside."""

    def __init__(
        self, config: ChildConfig, pid: int, sock: socket.socket, server: socket.socket, last_call: LastCall
    ) -> None:
        self.config = config
        self.last_call = last_call
        self.sock = sock
        self.pid = pid
        self._server = server
        self._exit: dict[str, Any] | None = None
        self._server_gone = False
        self._peer_died: float | None = None

    def answer(self, limit: float) -> Observation:
        """Return the child's next reply, or say what became of it by `limit` on the monotonic clock."""
        began = time.monotonic()
        while True:
            cut = limit
            if self._peer_died is not None:
                cut = min(limit, max(self._peer_died, began) + PATIENCE_SECONDS)
            over = self._exit is not None or self._server_gone
            ready = self._wait(0.0 if over else cut)
            if self.sock in ready:
                try:
                    reply = wire.receive(self.sock, deadline=cut)
                except TimeoutError:  # Ended or stopped in the middle of a reply.
                    return self._late(began)
                except ConnectionError:
                    reply = None
                except wire.WireError as error:
                    text = f"rank {self.config.rank} sent {error}"
                    return self._observation(Status.LOST, began, error=text)
                if reply is not None:
                    return Observation.from_json(reply)
                self._await_exit(_KILL_SECONDS)
                return self._ended(began)
            if over:
                return self._ended(began)
            if self._server in ready:
                self._hear()
            else:
                return self._late(began)

    def end(self, grace: float) -> bool:
        """End the process by end of file, then after `grace` seconds by SIGKILL.

        Returns whether the server confirmed it; if not, neither is to be used any more.
        """
        self.sock.close()
        try:
            if grace > 0:
                self._await_exit(grace)
            if self._exit is None:
                self._signal(signal.SIGKILL)
                self._await_exit(_KILL_SECONDS)
        except ConnectionError:
            return False
        return self._exit is not None

    def forsake(self) -> None:
        """Kill the process as if it had died by itself, which the server tells the ranks of its world."""
        with contextlib.suppress(ConnectionError):  # The server is gone, and the process with it.
            wire.send(self._server, {"signal": int(signal.SIGKILL), "told": True})

    def _wait(self, limit: float) -> list[socket.socket]:
        """Return which of child and server have something to say, none if neither has by `limit`."""
        poll = select.poll()
        for sock in (self.sock, self._server):
            poll.register(sock, select.POLLIN)
        fds = [fd for fd, _ in poll.poll(max(limit - time.monotonic(), 0.0) * 1000)]
        return [sock for sock in (self.sock, self._server) if sock.fileno() in fds]

    def _hear(self, limit: float | None = None) -> None:
        """Take in one message of the server's. Raises `TimeoutError` at `limit`."""
        try:
            message = wire.receive(self._server, deadline=limit)
        except (ConnectionError, wire.WireError):
            message = None
        if message is None:
            self._server_gone = True
        elif message.get("exited") == self.pid:
            self._exit = message
        elif message.get("peer") == self.config.world:
            self._peer_died = time.monotonic()

    def _await_exit(self, seconds: float) -> None:
        """Wait until the server says how the process ended, or is gone itself, for `seconds` at most."""
        limit = time.monotonic() + seconds
        with contextlib.suppress(TimeoutError):
            while self._exit is None and not self._server_gone:
                self._hear(limit)

    def _signal(self, number: signal.Signals) -> None:
        """Have the server send the process a signal: only its parent knows that the number is still its."""
        wire.send(self._server, {"signal": int(number)})

    def _ended(self, began: float) -> Observation:
        rank = self.config.rank
        if self._exit is not None:
            how, order = _how(self._exit["status"]), self._exit["order"]
            stack = _read(self.config.stack_file)
            return self._observation(Status.DIED, began, signal=how, order=order, stack=stack)
        if self._server_gone:
            said = zygote.tail(Path(self.config.folder).parent / "log", 2000).strip()
            text = f"the fork server of rank {rank} is gone, and the rank with it: {said or 'no word from it'}"
        else:
            text = f"rank {rank} closed its connection and did not end"
        return self._observation(Status.LOST, began, error=text)

    def _late(self, began: float) -> Observation:
        if self._peer_died is not None:
            return self._observation(Status.CUT_SHORT, began, stack=self._stack())
        if process.state(self.pid) in ("T", "t"):
            return self._observation(Status.STOPPED, began)
        return self._observation(Status.HUNG, began, stack=self._stack())

    def _stack(self) -> str:
        """Have the process write its Python stack, and return it once it grows no more."""
        try:
            self._signal(signal.SIGUSR2)
        except ConnectionError:
            return ""  # The server is gone, and the process with it.
        limit = time.monotonic() + _STACK_SECONDS
        stack = ""
        while time.monotonic() < limit:
            time.sleep(0.02)
            before, stack = stack, _read(self.config.stack_file)
            if stack and stack == before:
                break
        return stack

    def _observation(self, status: Status, began: float, **known: Any) -> Observation:
        return Observation(
            self.config.rank,
            status,
            call=self.last_call.get(),
            output=zygote.tail(self.config.output_file, _OUTPUT_BYTES),
            seconds=time.monotonic() - began,
            **known,
        )


def _how(wait_status: int) -> str:
    """Name how a process ended: "SIGSEGV", "exit 3"."""
    code = os.waitstatus_to_exitcode(wait_status)
    if code >= 0:
        return f"exit {code}"
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"  # A real-time signal, which has no name.


def _read(path: Path) -> str:
    return path.read_text(errors="replace") if path.exists() else ""
