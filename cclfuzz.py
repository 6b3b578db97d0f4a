"""cclfuzz's public API, imported lazily: `from cclfuzz import cases, check`."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from corpus.case import Case
    from fuzz.api import cases, check

__all__ = ["Case", "cases", "check"]

_HOMES = {"Case": "corpus.case", "cases": "fuzz.api", "check": "fuzz.api"}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first asked for."""
    if name not in _HOMES:
        raise AttributeError(f"module 'cclfuzz' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
