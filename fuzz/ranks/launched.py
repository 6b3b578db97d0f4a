"""What mpiexec starts in place of a rank: a relay, which hands over what mpiexec gives to a rank, and waits.

The rank's process itself is forked by the zygote, with torch imported already. It takes the relay's place in the eyes
of the MPI library: it has the variables that mpiexec has set, and the connection to it.
"""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Mapping, Sequence

from fuzz.ranks import namespace, wire
from fuzz.ranks.process import die_with_parent

ADOPT_SECONDS = 60.0
"""How long a rank waits for what its relay was given: its supervisor has it already."""

_RANK = ("PMI_RANK", "OMPI_COMM_WORLD_RANK")
"""Where MPICH's and Open MPI's mpiexec say which rank a process is."""

_GIVEN = ("PMI", "PRTE_", "OMPI_", "MPI_")
"""How the names of the variables begin that an mpiexec sets for its ranks."""

_DESCRIPTOR = "PMI_FD"
"""The variable that holds the number of an inherited connection to mpiexec, where there is one."""

MAX_FDS = 3
"""Descriptors that a rank is given: of its user and network namespaces, and the connection to mpiexec."""


def relay(address: str) -> int:
    """Send a supervisor what mpiexec has given to this process; return the exit status once the supervisor hangs up.

    `address` is the path of the supervisor's Unix socket. Raises `OSError` if nobody is there.
    """
    die_with_parent(os.getppid())
    given = {name: value for name, value in os.environ.items() if name.startswith(_GIVEN)}
    rank = next(int(os.environ[name]) for name in _RANK if name in os.environ)
    fds = namespace.handles()
    if _DESCRIPTOR in given:
        fds.append(int(given[_DESCRIPTOR]))
    with socket.socket(socket.AF_UNIX) as sock:
        sock.connect(address)
        wire.send(sock, {"rank": rank, "environment": given}, fds)
        for fd in fds:
            os.close(fd)  # From now on they are the rank's.
        while sock.recv(1):
            pass
    return 0


def hand_over(sock: socket.socket, environment: Mapping[str, str], fds: Sequence[int]) -> None:
    """Send a rank's process what its relay was given."""
    wire.send(sock, {"environment": dict(environment)}, fds)


def adopt(sock: socket.socket, parent: int) -> None:
    """In a rank's process, a child of `parent`: take what `hand_over` sends.

    Raises what `wire.receive` does, `WireError` at its end, and `OSError` if the rank may not be where its relay is.
    """
    message, fds = wire.receive_with_fds(sock, max_fds=MAX_FDS, deadline=time.monotonic() + ADOPT_SECONDS)
    sock.settimeout(None)
    if message is None:
        raise wire.WireError("end of file in place of what mpiexec gave")
    namespace.enter(*fds[:2])
    die_with_parent(parent)
    os.environ.update(message["environment"])
    for fd in fds[:2]:
        os.close(fd)
    for fd in fds[2:]:
        os.environ[_DESCRIPTOR] = str(fd)


def main(arguments: list[str]) -> int:
    """`relay ADDRESS`, which mpiexec starts, or `start PID COMMAND...`: be that command, and end with process PID.

    `start-private` is `start` in a private network.
    """
    if arguments[0] == "relay":
        return relay(arguments[1])
    if arguments[0] == "start-private":
        namespace.enter_new()
    die_with_parent(int(arguments[1]))
    os.execv(arguments[2], arguments[2:])  # noqa: S606


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
