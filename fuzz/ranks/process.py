"""The few facilities of Linux that keep a tree of processes from outliving its root."""

from __future__ import annotations

import ctypes
import os
import signal
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def _prctl(option: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, value, 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"prctl({option}): {os.strerror(number)}")


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when the thread of process `parent` that forked it ends.

    Ends this process at once if the parent is gone already. Raises `OSError` if the kernel refuses.
    """
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent ends, so that none gets out of sight.

    Raises `OSError` if the kernel refuses.
    """
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def state(pid: int) -> str:
    """Return the letter of a process's state in /proc (R, S, D, T, t, Z, ...), "" if there is none."""
    fields = _stat(pid)
    return fields[0] if fields else ""


def descendants(root: int) -> list[int]:
    """Return the living descendants of a process; zombies do not count as living."""
    children: dict[int, list[int]] = {}
    zombies = set()
    for pid in (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()):
        if fields := _stat(pid):
            children.setdefault(int(fields[1]), []).append(pid)
            if fields[0] == "Z":
                zombies.add(pid)
    found = []
    front = [root]
    while front:
        front = [child for parent in front for child in children.get(parent, ())]
        found += front
    return [pid for pid in found if pid not in zombies]


def _stat(pid: int) -> list[str]:
    """Return the fields of /proc/<pid>/stat from the state on, [] if the process is gone."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return []
    # The second field is the name in parentheses, and a name may hold parentheses and spaces.
    return text.rpartition(")")[2].split()
