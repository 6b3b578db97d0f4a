"""Length-prefixed JSON messages over a stream socket, with file descriptors where a process is handed one."""

from __future__ import annotations

import json
import socket
import struct
import time
from collections.abc import Mapping, Sequence
from typing import Any

MAX_MESSAGE = 64 * 2**20
"""Bytes in one message; more means that the other side no longer speaks this protocol."""

_LENGTH = struct.Struct("!I")


class WireError(Exception):
    """The other side sent something that is not a whole, well-formed message."""


def send(
    sock: socket.socket, message: Mapping[str, Any], fds: Sequence[int] = (), *, deadline: float | None = None
) -> None:
    """Send one message, and duplicates of `fds` with it.

    `deadline` is a time on the monotonic clock in seconds; without it the call waits for ever. Raises
    `TimeoutError` when the deadline passes before the other side has made room, `WireError` if the message
    is longer than `MAX_MESSAGE`, and `OSError` (mostly `BrokenPipeError`) if the other side is gone.
    """
    body = json.dumps(message, separators=(",", ":")).encode()
    if len(body) > MAX_MESSAGE:
        raise WireError(f"a message of {len(body)} bytes; the limit is {MAX_MESSAGE}")
    _set_deadline(sock, deadline)
    data = _LENGTH.pack(len(body)) + body
    sent = socket.send_fds(sock, [data], list(fds)) if fds else 0
    if sent < len(data):
        sock.sendall(data[sent:])


def receive(sock: socket.socket, *, deadline: float | None = None) -> dict[str, Any] | None:
    """Return the next message, or None at a clean end of file.

    `deadline` is a time on the monotonic clock in seconds; without it the call waits for ever.
    Raises `TimeoutError` when the deadline passes first, `WireError` for a truncated, oversized or
    malformed message, and `OSError` if the connection breaks.
    """
    message, fds = receive_with_fds(sock, max_fds=0, deadline=deadline)
    assert not fds
    return message


def receive_with_fds(
    sock: socket.socket, *, max_fds: int, deadline: float | None = None
) -> tuple[dict[str, Any] | None, list[int]]:
    """Like `receive`, and also return up to `max_fds` file descriptors, which the caller owns."""
    fds: list[int] = []
    header = b""
    if max_fds:
        _set_deadline(sock, deadline)
        # Descriptors travel with the first byte of the message that they were sent with.
        header, fds, _, _ = socket.recv_fds(sock, 1, max_fds)
        if not header:
            return None, fds
    header += _read(sock, _LENGTH.size - len(header), deadline)
    if not header:
        return None, fds
    if len(header) < _LENGTH.size:
        raise WireError("end of file inside a message's length")
    (length,) = _LENGTH.unpack(header)
    if length > MAX_MESSAGE:
        raise WireError(f"a message of {length} bytes is announced; the limit is {MAX_MESSAGE}")
    body = _read(sock, length, deadline)
    if len(body) < length:
        raise WireError(f"end of file after {len(body)} of a message's {length} bytes")
    try:
        message = json.loads(body)
    except ValueError as error:
        raise WireError(f"a message that is not JSON: {error}") from error
    if not isinstance(message, dict):
        raise WireError(f"a message that is a {type(message).__name__}, not an object")
    return message, fds


def _read(sock: socket.socket, size: int, deadline: float | None) -> bytes:
    """Read `size` bytes, fewer only at end of file."""
    data = bytearray()
    while len(data) < size:
        _set_deadline(sock, deadline)
        part = sock.recv(min(size - len(data), 2**20))
        if not part:
            break
        data += part
    return bytes(data)


def _set_deadline(sock: socket.socket, deadline: float | None) -> None:
    # A timeout of 0 would mean "do not block" and raise another exception than TimeoutError.
    sock.settimeout(None if deadline is None else max(deadline - time.monotonic(), 1e-4))
