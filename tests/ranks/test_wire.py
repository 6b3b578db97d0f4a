"""Messages arrive whole, or the reason is said."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fuzz.ranks import wire


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    left, right = socket.socketpair()
    with left, right:
        yield left, right


def test_messages_arrive_in_order(ends: tuple[socket.socket, socket.socket]) -> None:
    for number in range(3):
        wire.send(ends[0], {"number": number, "text": "é\0\ud800"})
    assert [wire.receive(ends[1]) for _ in range(3)] == [{"number": number, "text": "é\0\ud800"} for number in range(3)]


def test_end_of_file_between_messages_is_none(ends: tuple[socket.socket, socket.socket]) -> None:
    wire.send(ends[0], {})
    ends[0].close()
    assert wire.receive(ends[1]) == {}
    assert wire.receive(ends[1]) is None
    assert wire.receive_with_fds(ends[1], max_fds=1) == (None, [])


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"\0\0", "inside a message's length"),
        (b"\0\0\0\5[1", "after 2 of a message's 5 bytes"),
        (b"\0\0\0\3[1]", "a list, not an object"),
        (b"\0\0\0\3{1}", "not JSON"),
        (b"\0\0\0\2\xff\xfe", "not JSON"),
        (b"\xff\xff\xff\xff", "4294967295 bytes is announced"),
    ],
)
def test_what_is_no_message_is_refused(ends: tuple[socket.socket, socket.socket], data: bytes, said: str) -> None:
    ends[0].sendall(data)
    ends[0].close()
    with pytest.raises(wire.WireError, match=said):
        wire.receive(ends[1])


def test_too_long_a_message_is_not_sent(
    ends: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wire, "MAX_MESSAGE", 10)
    with pytest.raises(wire.WireError, match="the limit is 10"):
        wire.send(ends[0], {"text": "0123456789"})


@pytest.mark.parametrize("begun", [b"", b"\0", b"\0\0\0\5["])
def test_a_deadline_holds_inside_a_message(ends: tuple[socket.socket, socket.socket], begun: bytes) -> None:
    ends[0].sendall(begun)
    with pytest.raises(TimeoutError):
        wire.receive(ends[1], deadline=time.monotonic() + 0.01)


def test_a_deadline_holds_where_nobody_reads(ends: tuple[socket.socket, socket.socket]) -> None:
    with pytest.raises(TimeoutError):
        wire.send(ends[0], {"text": " " * 2**22}, deadline=time.monotonic() + 0.01)


def test_descriptors_travel_with_their_message(ends: tuple[socket.socket, socket.socket], tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("content")
    with path.open() as file:
        wire.send(ends[0], {"first": 1})
        wire.send(ends[0], {"second": 2}, [file.fileno()])
    assert wire.receive_with_fds(ends[1], max_fds=1) == ({"first": 1}, [])
    message, fds = wire.receive_with_fds(ends[1], max_fds=1)
    assert message == {"second": 2}
    with os.fdopen(fds[0]) as received:
        assert received.read() == "content"
