"""A run that is disturbed: ranks killed and stopped from outside, and a person's Ctrl-C.

Each scenario is played once, by a real command in a process of its own; the tests then look at what it left.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

SECONDS = 120.0
"""Bound on each wait, on a machine that has other things to do."""


def status_of(pid: int) -> tuple[int, str, list[str]] | None:
    """Parent, state and command line of a process; None when it is gone or a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        command = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[0] == "Z" else (int(fields[1]), fields[0], command)


def descendants(root: int) -> dict[int, list[str]]:
    """Processes below `root`, with their command lines."""
    everyone = {int(path.name): status_of(int(path.name)) for path in Path("/proc").iterdir() if path.name.isdigit()}
    found: dict[int, list[str]] = {}
    pending = [root]
    while pending:
        parent = pending.pop()
        for pid, status in everyone.items():
            if status is not None and status[0] == parent and pid not in found:
                found[pid] = status[2]
                pending.append(pid)
    return found


def wait_for(true: Callable[[], Any], what: str) -> Any:
    limit = time.monotonic() + SECONDS
    while not (result := true()):
        assert time.monotonic() < limit, f"no {what} within {SECONDS} s"
        time.sleep(0.05)
    return result


@dataclass
class Played:
    """A command that is running, or has run."""

    process: subprocess.Popen[str]
    out: Path
    events_at: dict[str, int] = field(default_factory=dict)
    seen: dict[int, list[str]] = field(default_factory=dict)
    output: str = ""

    def events(self) -> list[dict[str, Any]]:
        texts = [path.read_text() for path in self.out.glob("*/events.jsonl")]
        lines = [line for text in texts for line in text.splitlines(keepends=True) if line.endswith("\n")]
        return [json.loads(line) for line in lines]

    def of(self, name: str) -> list[dict[str, Any]]:
        return [event for event in self.events() if event["event"] == name]

    def rank(self) -> int:
        """The process of some rank: a fork of a fork server."""
        below = descendants(self.process.pid)
        self.seen |= below
        servers = {pid for pid, command in below.items() if "fuzz.ranks.zygote" in command}
        return next(pid for pid in servers if (status := status_of(pid)) and status[0] in servers)

    def end(self, number: signal.Signals) -> None:
        self.seen |= descendants(self.process.pid)
        self.process.send_signal(number)
        self.output = self.process.communicate(timeout=SECONDS)[0]

    def left_over(self) -> list[int]:
        """Processes of the run that are still there."""
        return [pid for pid, command in self.seen.items() if (now := status_of(pid)) and now[2] == command]

    def folder(self) -> Path:
        """The private folder of the run's cluster, from the command line of its head."""
        return next(Path(command[5]) for command in self.seen.values() if "fuzz.ranks.head" in command)


def start(out: Path, *arguments: str) -> Played:
    command = [sys.executable, "-m", "fuzz.cli", "run", "--backend", "gloo", "--world", "2", "--out", str(out)]
    return Played(
        subprocess.Popen(
            [*command, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=out.parent,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        ),
        out,
    )


@pytest.fixture(scope="module")
def disturbed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Played]:
    """A clean run, one of whose ranks is killed, then another stopped, then all of it interrupted."""
    shm = set(Path("/dev/shm").iterdir())
    played = start(
        tmp_path_factory.mktemp("disturbed") / "runs", "--op", "all_reduce", "--layout", "contiguous", "--time", "10m"
    )
    try:
        wait_for(lambda: len(played.of("CaseRun")) > 20, "case")
        os.kill(played.rank(), signal.SIGKILL)
        wait_for(lambda: len(played.of("Incident")) == 1, "word of a killed rank")
        played.events_at["killed"] = len(played.of("CaseRun"))
        wait_for(lambda: len(played.of("CaseRun")) > played.events_at["killed"] + 20, "case after a killed rank")
        os.kill(played.rank(), signal.SIGSTOP)
        wait_for(lambda: len(played.of("Incident")) == 2, "word of a stopped rank")
        played.events_at["stopped"] = len(played.of("CaseRun"))
        wait_for(lambda: len(played.of("CaseRun")) > played.events_at["stopped"] + 20, "case after a stopped rank")
        played.end(signal.SIGINT)
        # Other tests' clusters pass through there too, but do not stay.
        wait_for(lambda: set(Path("/dev/shm").iterdir()) <= shm, "clean /dev/shm")
        yield played
    finally:
        played.process.kill()


def test_a_killed_rank_is_reported_as_such(disturbed: Played) -> None:
    assert "died by SIGKILL" in disturbed.of("Incident")[0]["text"]
    assert "did not happen again" in disturbed.of("Incident")[0]["text"]


def test_a_stopped_rank_is_reported_as_such(disturbed: Played) -> None:
    assert "was stopped (process state T)" in disturbed.of("Incident")[1]["text"]


def test_what_came_from_outside_is_no_finding(disturbed: Played) -> None:
    assert disturbed.of("Found") == []
    assert disturbed.of("Finished")[0]["incidents"] == 2


def test_an_interrupted_run_says_so(disturbed: Played) -> None:
    assert disturbed.process.returncode == 130
    assert disturbed.of("Finished")[0]["interrupted"] is True
    assert "interrupted after" in disturbed.output


def test_an_interrupted_run_leaves_nothing(disturbed: Played) -> None:
    assert disturbed.left_over() == []
    assert not disturbed.folder().exists()


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Played]:
    """A run that is interrupted as soon as a case has failed."""
    played = start(tmp_path_factory.mktemp("interrupted") / "runs", "--op", "all_reduce", "--time", "10m")
    try:
        wait_for(lambda: played.of("Suspected"), "failure")
        played.end(signal.SIGTERM)
        yield played
    finally:
        played.process.kill()


def test_what_was_found_is_on_disk(interrupted: Played) -> None:
    (case,) = interrupted.out.glob("*/findings/*/case.json")
    assert json.loads(case.read_text())["program"][0]["op"] == "all_reduce"
    assert (case.parent / "repro.py").exists()
    assert case.parent.name.startswith("gloo-all_reduce-")


def test_a_terminated_run_leaves_nothing(interrupted: Played) -> None:
    assert interrupted.process.returncode == 130
    assert interrupted.left_over() == []
    assert not interrupted.folder().exists()


def test_a_working_directory_with_packages_of_our_names(tmp_path: Path) -> None:
    """A person's own `fuzz` is not taken for ours, and what they have set for another Ray is not for ours."""
    for name in ("fuzz", "corpus"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text('raise RuntimeError("not ours")\n')
    here = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-P", "-m", "fuzz.cli", "run", "--examples", "2", "--op", "barrier", "--world", "2"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(here), "RAY_ADDRESS": "nowhere:1", "PYTHONOPTIMIZE": "1"},
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
