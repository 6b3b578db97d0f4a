"""Runs a repro once, as the person who gets it will: alone, without us on the import path."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

SECONDS = 120.0
"""How long a repro may take; its own deadline for a rank is shorter."""


def shows(path: Path) -> bool:
    """Return whether `python repro.py` exits 1, as it does where the bug is there."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "RAY_"))}
    process = subprocess.Popen(
        [sys.executable, path.name],
        cwd=path.parent,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        return process.wait(SECONDS) == 1
    except subprocess.TimeoutExpired:
        return False
    finally:
        # Its ranks are in its session: none outlives it, not even when a person interrupts us.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
