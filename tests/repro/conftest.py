"""Fixtures of the tests of scripts."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from running import Forked, environment


@pytest.fixture(scope="module")
def forked() -> Iterator[Forked]:
    """Run a script in a fork of an interpreter that has torch already; it leaves nothing behind."""
    helper = Path(__file__).with_name("preloaded.py")
    with subprocess.Popen(
        [sys.executable, str(helper)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None

        def run_forked(folder: Path, text: str) -> subprocess.CompletedProcess[str]:
            assert process.stdin is not None
            assert process.stdout is not None
            (folder / "repro.py").write_text(text)
            order = {"folder": str(folder), "file": "repro.py", "environment": dict(environment(folder))}
            process.stdin.write(json.dumps(order) + "\n")
            process.stdin.flush()
            status = int(process.stdout.readline())
            out, err = ((folder / f"repro.py.{ending}").read_text() for ending in ("out", "err"))
            assert list((folder / "tmp").iterdir()) == []
            return subprocess.CompletedProcess(["repro.py"], status, out, err)

        yield run_forked
        process.stdin.close()
