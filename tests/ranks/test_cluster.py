"""A cluster of our own is closed to others, and leaves nothing behind however its driver ends."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import ray

from fuzz.ranks.cluster import Cluster, ClusterError
from fuzz.ranks.pool import World
from fuzz.ranks.process import descendants, state
from oracles.observation import Status

DRIVER = """
import sys
from fuzz.ranks.cluster import Cluster
from fuzz.ranks.pool import World, WorldConfig

with (
    Cluster.connect(sys.argv[2] if len(sys.argv) > 2 else None) as cluster,
    World(WorldConfig("gloo", 2, executor="toy:Toy"), cluster) as world,
):
    world.run("{}", 60)
    print(cluster.directory, flush=True)
    if sys.argv[1] == "hang":
        world.run('{"0": ["hang"], "1": ["hang"]}', 600)
    else:
        sys.stdin.read()
"""

GONE_SECONDS = 90.0
"""A bound, not an expectation."""


def driver(*arguments: str) -> subprocess.Popen[str]:
    root = Path(__file__).resolve().parents[2]
    paths = [str(root), str(root / "tests" / "ranks"), os.environ.get("PYTHONPATH", "")]
    return subprocess.Popen(
        [sys.executable, "-c", DRIVER, *arguments],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(path for path in paths if path)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def started(running: subprocess.Popen[str]) -> tuple[Path, list[int]]:
    """Wait until a driver has run a case; return its directory and all processes below it."""
    assert running.stdout is not None
    assert running.stderr is not None
    # Ray may print warnings of its own first, such as that it runs many workers.
    names = (Path(line.strip()) for line in running.stdout)
    directory = next((path for path in names if path.name.startswith("cclfuzz-") and path.is_absolute()), None)
    assert directory is not None, running.stderr.read()
    return directory, descendants(running.pid)


def command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
    except (FileNotFoundError, ProcessLookupError):
        return ""


def listening() -> dict[str, str]:
    """Return the sockets of this machine that listen: their inodes, and the addresses."""
    found = {}
    for table, family in (("tcp", socket.AF_INET), ("tcp6", socket.AF_INET6)):
        for line in Path("/proc/net", table).read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A":
                words = bytes.fromhex(fields[1].partition(":")[0])
                # Each word of four bytes is in this machine's order, which is little-endian.
                packed = b"".join(words[i : i + 4][::-1] for i in range(0, len(words), 4))
                found[fields[9]] = socket.inet_ntop(family, packed)
    return found


def sockets(pids: list[int]) -> set[str]:
    """Return the inodes of the sockets that processes have open."""
    links = {link for pid in pids for link in opened(pid) if link.startswith("socket:")}
    return {link.removeprefix("socket:[").rstrip("]") for link in links}


def opened(pid: int) -> list[str]:
    links = []
    try:
        for fd in Path(f"/proc/{pid}/fd").iterdir():
            try:
                links.append(str(fd.readlink()))
            except FileNotFoundError:
                continue  # Closed meanwhile.
    except FileNotFoundError:
        pass  # Ended meanwhile.
    return links


def shared_memory(pids: list[int]) -> set[Path]:
    """Return the files in /dev/shm that processes have open or mapped and that have a name still."""
    names = {link for pid in pids for link in opened(pid)}
    for pid in pids:
        try:
            names |= {line.split(maxsplit=5)[-1] for line in Path(f"/proc/{pid}/maps").read_text().splitlines()}
        except (FileNotFoundError, ProcessLookupError):
            continue
    return {Path(name) for name in names if name.startswith("/dev/shm/") and not name.endswith("(deleted)")}


def wait_until_gone(pids: list[int], inodes: set[str], paths: set[Path]) -> None:
    """Wait until no process lives, no socket listens and no path exists. Zombies do not live."""
    limit = time.monotonic() + GONE_SECONDS
    while True:
        left = (
            [pid for pid in pids if state(pid) not in ("", "Z")],
            inodes & set(listening()),
            {path for path in paths if path.exists()},
        )
        if not any(left):
            return
        assert time.monotonic() < limit, f"left behind: {left}"
        time.sleep(0.1)


@pytest.fixture(scope="module")
def drivers() -> Iterator[dict[str, subprocess.Popen[str]]]:
    """Drivers with clusters of their own, by how they are to end. They start side by side to save time."""
    with contextlib.ExitStack() as stack:
        running = {}
        for how, mode in (("end", "wait"), ("SIGINT", "hang"), ("SIGKILL", "hang"), ("head", "wait")):
            running[how] = stack.enter_context(driver(mode))
            stack.callback(running[how].kill)
        yield running


@pytest.mark.parametrize("how", ["end", "SIGINT", "SIGKILL"])
def test_nothing_is_left_behind(drivers: dict[str, subprocess.Popen[str]], how: str) -> None:
    running = drivers[how]
    directory, pids = started(running)
    inodes = sockets(pids) & set(listening())
    assert inodes
    memory = shared_memory(pids)
    if how == "end":
        assert running.communicate()[1] == ""
        assert running.returncode == 0
    else:
        running.send_signal(signal.Signals[how])
        running.wait(GONE_SECONDS)
    wait_until_gone(pids, inodes, memory | {directory})


def test_ranks_end_with_the_head(drivers: dict[str, subprocess.Popen[str]]) -> None:
    running = drivers["head"]
    directory, pids = started(running)
    ranks = [pid for pid in pids if "fuzz.ranks.zygote" in command(pid)]
    assert len(ranks) == 3
    try:
        os.kill(next(pid for pid in pids if "fuzz.ranks.head" in command(pid)), signal.SIGKILL)
        wait_until_gone(ranks, set(), set())
    finally:
        # Nobody is left to do it, and some of Ray's processes wait for a minute.
        running.kill()
        for pid in pids:
            if str(directory) in command(pid) or "ray::" in command(pid):
                with contextlib.suppress(ProcessLookupError):  # It ended by itself meanwhile.
                    os.kill(pid, signal.SIGKILL)
        wait_until_gone(pids, set(), set())
        shutil.rmtree(directory)


def test_a_given_cluster_is_left_as_it_was(cluster: Cluster) -> None:
    before = ray.cluster_resources()
    with driver("wait", ray.get_runtime_context().gcs_address) as running:
        directory, pids = started(running)
        try:
            assert directory != cluster.directory
            assert pids == []
            assert running.communicate()[1] == ""
            head = next(pid for pid in descendants(os.getpid()) if "fuzz.ranks.head" in command(pid))
            wait_until_gone([pid for pid in descendants(head) if str(directory) in command(pid)], set(), {directory})
        finally:
            running.kill()
    assert ray.cluster_resources() == before


def test_every_socket_listens_on_the_loopback_interface_only(pair: World) -> None:
    assert [(seen.status, seen.error) for seen in pair.run("{}", 60)] == [(Status.OK, "")] * 2
    own = sockets([os.getpid(), *descendants(os.getpid())])
    found = {inode: address for inode, address in listening().items() if inode in own}
    # Ray's core, a driver and two workers at least: an empty set would prove nothing.
    assert len(found) >= 6
    assert set(found.values()) <= {"127.0.0.1", "::1", "::ffff:127.0.0.1"}


def test_what_is_written_is_private(cluster: Cluster) -> None:
    assert cluster.directory.stat().st_mode & 0o077 == 0
    assert (cluster.directory / "token").stat().st_mode & 0o077 == 0


def test_one_cluster_at_a_time(cluster: Cluster) -> None:
    with pytest.raises(ClusterError, match="connected to a Ray cluster already"):
        Cluster.connect(None)


def refusal(call: str) -> str:
    """Return what a process of its own says of a cluster that it does not get."""
    code = f"from fuzz.ranks.cluster import Cluster; {call}"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert said.returncode == 1
    return said.stderr


def test_a_cluster_that_is_not_there() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    assert f"ClusterError: nothing answers at {address}" in refusal(f"Cluster.connect({address!r})")


def test_a_cluster_that_does_not_start() -> None:
    said = refusal("Cluster.connect(None, gpus=-1)")
    assert "ClusterError: Ray did not start: " in said
    assert "negative" in said
