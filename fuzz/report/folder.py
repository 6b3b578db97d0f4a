"""A run's folder: `findings/<key>/` for each distinct bug, and what is being looked at in `findings/suspected/`."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from fuzz import events
from fuzz.finding import Finding, case_text, to_json
from fuzz.report.page import page
from fuzz.repro.code import ReproError
from fuzz.repro.dialects import dialect
from fuzz.repro.pytest_file import pytest_file
from fuzz.repro.script import script
from fuzz.repro.trial import shows

SUSPECTED = "suspected"

FLAKY_TRIALS = 5
"""Runs of the repro of a bug that does not always show."""


def write_atomically(path: Path, text: str) -> None:
    """Write a file so that a reader, or a killed writer, leaves either the old one or the whole new one."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


class RunFolder:
    """One run's folder under `out`, named by its time; it stores findings and records events."""

    def __init__(self, out: Path, now: datetime | None = None) -> None:
        stamp = (now or datetime.now(UTC)).strftime("%Y%m%d-%H%M%S")
        out.mkdir(parents=True, exist_ok=True)
        self.path = self._make(out, stamp)
        self._events = (self.path / "events.jsonl").open("w", encoding="utf-8")

    @staticmethod
    def _make(out: Path, stamp: str) -> Path:
        for number in range(1000):
            path = out / (f"{stamp}-{number}" if number else stamp)
            try:
                path.mkdir()
            except FileExistsError:
                continue
            return path
        raise OSError(f"{out}: a thousand runs began in one second")

    def suspect(self, finding: Finding) -> None:
        """Keep a case that failed, before it is shrunk."""
        self._write(self.path / "findings" / SUSPECTED, finding)

    def keep(self, finding: Finding) -> str:
        """Write a bug's folder with everything about it, run its repro once, and return the folder's path."""
        folder = self.path / "findings" / finding.key
        self._write(folder, finding)
        if finding.shrunk:
            self._try(folder, finding)
        self.discard()
        return str(folder)

    def discard(self) -> None:
        """Drop what was suspected."""
        shutil.rmtree(self.path / "findings" / SUSPECTED, ignore_errors=True)

    def _write(self, folder: Path, finding: Finding) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(folder / "case.json", case_text(finding.case))
        write_atomically(folder / "finding.json", json.dumps(to_json(finding), indent=1) + "\n")
        write_atomically(folder / "finding.md", page(finding, ""))
        try:
            self._write_repros(folder, finding, faithful=False)
        except ReproError as error:
            write_atomically(folder / "finding.md", page(finding, f"There is no repro.py: {error}."))

    def _write_repros(self, folder: Path, finding: Finding, *, faithful: bool) -> None:
        for name, write in (("repro.py", script), ("test_repro.py", pytest_file)):
            text = write(
                finding.case,
                finding.failures,
                title=finding.title,
                versions=finding.versions,
                faithful=faithful,
                repeats=finding.repeats,
            )
            write_atomically(folder / name, text)

    def _try(self, folder: Path, finding: Finding) -> None:
        """Run the repro; where its simple data does not show the bug, give it exactly the case's."""
        if not (folder / "repro.py").exists():
            return
        missing = [name for name in dialect(finding.case.backend).modules if find_spec(name) is None]
        if missing:
            said = f"repro.py was not run: it needs {', '.join(missing)}, which this interpreter has not."
            write_atomically(folder / "finding.md", page(finding, said))
            return
        # A flaky bug shows now and then: a few runs say more, and many take as long as another case.
        most = FLAKY_TRIALS if finding.flaky else 1
        tried = self._shown(folder, most)
        if tried is None:
            self._write_repros(folder, finding, faithful=True)
            tried = self._shown(folder, most)
        result = "showed the bug" if tried else "did NOT show the bug"
        times = "once" if most == 1 else f"{tried or most} times"
        trial = f"repro.py was run {times}, alone, on this machine, and {result}."
        write_atomically(folder / "finding.md", page(finding, trial))

    @staticmethod
    def _shown(folder: Path, most: int) -> int | None:
        """In which run the repro showed the bug; None: in none of them."""
        return next((run + 1 for run in range(most) if shows(folder / "repro.py")), None)

    def record(self, event: events.Event) -> None:
        """Append one event to `events.jsonl`."""
        data: dict[str, Any] = {"event": type(event).__name__}
        match event:
            case events.Found():
                data |= {"key": event.finding.key, "folder": event.folder, "standing": str(event.finding.standing)}
            case events.Finished():
                data |= asdict(event)
                write_atomically(self.path / "folds.json", json.dumps(dict(event.folds), indent=1) + "\n")
            case _:
                data |= {name: getattr(event, name) for name in event.__slots__}
        self._events.write(json.dumps(data) + "\n")
        self._events.flush()

    def close(self) -> None:
        """Close the record of events."""
        self._events.close()
