"""A backend's flags: what can be set, to what, and when it takes effect."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Scope(StrEnum):
    """When a flag is read: a change needs at least this much to be started anew."""

    PROCESS = "process"
    """At the start of the process: part of a pool's configuration."""
    WORLD = "world"
    """When the process group is made: part of a pool's configuration."""
    CALL = "call"
    """At every call: drawn with the case."""


@dataclass(frozen=True, slots=True)
class Flag:
    """One command-line flag or environment variable of a backend.

    `values` are the values worth drawing, the plainest first; a case that leaves the flag out leaves it unset.
    `environment`: the flag is a variable of the ranks' environment (for PROCESS and WORLD scope).
    """

    name: str
    values: tuple[str, ...]
    scope: Scope
    source: str
    environment: bool = True
