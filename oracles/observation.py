"""What one rank reports after a case: small, JSON-able, and never a tensor."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any


class Status(StrEnum):
    """How the case ended on one rank."""

    OK = "ok"
    """Every call returned; the oracles looked at the tensors."""
    RAISED = "raised"
    """A call raised an exception (`error` says which, `error_call` where)."""
    DIED = "died"
    """The rank's process ended by a signal or an exit (`signal` says how)."""
    HUNG = "hung"
    """The deadline passed; the process was killed after its stack was taken."""
    STOPPED = "stopped"
    """The deadline passed while the process was in state T (SIGSTOP, a debugger)."""
    CUT_SHORT = "cut short"
    """Still waiting when another rank died; ended early because its world was gone."""
    LOST = "lost"
    """The rank's supervisor, its node or its environment failed: ours, not the library's."""


@dataclass(frozen=True, slots=True)
class Observation:
    """One rank's account of one case.

    `reports` holds what each oracle's `observe` half returned, by oracle name.
    `call` is the index of the last call that was begun (-1: none).
    `order` ranks the deaths in one world: 0 for the first process that ended.
    `seconds` is the time inside the rank, `library_seconds` the part inside the library's calls.
    """

    rank: int
    status: Status
    digest: str = ""
    call: int = -1
    error: str = ""
    error_type: str = ""
    signal: str = ""
    order: int = 0
    stack: str = ""
    output: str = ""
    seconds: float = 0.0
    library_seconds: float = 0.0
    routes: tuple[str, ...] = ()
    versions: tuple[tuple[str, str], ...] = ()
    reports: dict[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-able dictionary; `from_json` is its inverse."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Observation:
        """Rebuild an observation from `to_json`'s dictionary."""
        known = dict(data)
        known["status"] = Status(known["status"])
        known["routes"] = tuple(known.get("routes", ()))
        known["versions"] = tuple((name, version) for name, version in known.get("versions", ()))
        return cls(**known)
