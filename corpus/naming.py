"""How a case names the library under test: NAME, or NAME@ENVIRONMENT where it runs under another interpreter."""

from __future__ import annotations

import re
from dataclasses import dataclass

_ENVIRONMENT = re.compile(r"(?P<what>.+)@(?P<environment>[A-Za-z0-9][A-Za-z0-9._-]*)\Z", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Named:
    """The parts of a backend's name in a case. `environment` is "" where it has none."""

    what: str
    environment: str = ""


def parse(backend: str) -> Named:
    """Take a backend's name apart."""
    found = _ENVIRONMENT.match(backend)
    return Named(backend) if found is None else Named(found["what"], found["environment"])
