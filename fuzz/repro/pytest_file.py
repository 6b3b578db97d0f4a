"""The text of `test_repro.py`: the script as a test for plain pytest."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from corpus.case import Case
from fuzz.repro.dialects import Dialect
from fuzz.repro.script import lines


def pytest_file(
    case: Case,
    failures: Sequence[Mapping[str, Any]],
    *,
    title: str,
    versions: Sequence[tuple[str, str]] = (),
    faithful: bool = False,
    written_by: Dialect | None = None,
    repeats: int = 1,
) -> str:
    """Return the text of a test that fails while the bug is there. Arguments are those of `script`.

    The test runs its own file as a program: ranks are forked from a process in which nothing has been computed yet.

    Raises:
        ReproError: this version cannot write the case as a script.
    """
    name = re.sub(r"\W+", "_", title.lower()).strip("_")[:60].rstrip("_") or "repro"
    test = [
        f"def test_{name}():",
        "    done = subprocess.run([sys.executable, __file__], capture_output=True, text=True)",
        "    assert done.returncode == 0, done.stdout + done.stderr",
    ]
    return "\n".join(
        lines(
            case,
            failures,
            title=title,
            versions=versions,
            faithful=faithful,
            written_by=written_by,
            repeats=repeats,
            file="test_repro.py",
            last=test,
            imports=("subprocess",),
        )
    )
