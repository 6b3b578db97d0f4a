"""Runs scripts as a person does: alone, with nothing of ours on the import path."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from corpus.case import Call, Case
from fuzz.repro.dialects import Dialect, Names

Forked = Callable[[Path, str], subprocess.CompletedProcess[str]]


class Raw(Dialect):
    """Calls that are given as text."""

    def __init__(self, *lines: str) -> None:
        super().__init__()
        self.lines = lines

    def imports(self, case: Case) -> tuple[str, ...]:
        return ("import time",) if any("time." in line for line in self.lines) else ()

    def call(self, case: Case, call: Call, names: Names) -> list[str]:
        return list(self.lines)


def environment(folder: Path) -> Mapping[str, str]:
    """Nothing of ours can be imported, and temporary files are seen."""
    (folder / "tmp").mkdir(exist_ok=True)
    kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "RANK", "WORLD_SIZE")}
    return kept | {"TMPDIR": str(folder / "tmp"), "OMP_NUM_THREADS": "1"}


def run(
    folder: Path, text: str, *command: str, name: str = "repro.py", python: str = sys.executable
) -> subprocess.CompletedProcess[str]:
    """Run a script (or `command` on it); it leaves nothing behind."""
    (folder / name).write_text(text)
    done = subprocess.run(
        [python, *command, name],
        cwd=folder,
        env=environment(folder),
        capture_output=True,
        text=True,
        timeout=120,
    )
    if not command:
        assert list((folder / "tmp").iterdir()) == []
    return done
