"""Seeded faults over a correct backend, by name: our own test of ourselves, never a proof on a third party's code."""

from __future__ import annotations

from fuzz.backends.base import Backend
from fuzz.faults.zoo import FAULTS, Faulty


class UnknownFault(ValueError):
    """There is no fault of this name for this backend."""


def names(backend: Backend) -> dict[str, str]:
    """Every fault that the backend can be given, with what it does wrong."""
    generic = {name: fault.summary for name, fault in FAULTS.items() if fault.applies(backend)}
    return {**backend.faults, **generic}


def wrap(backend: Backend, fault: str | None) -> Backend:
    """Return the backend with a fault seeded, or itself where `fault` is None or the backend's own.

    Raises:
        UnknownFault: there is none of this name; the message lists those that are.
    """
    if fault is None or fault in backend.faults:
        return backend
    if fault not in names(backend):
        known = ", ".join(names(backend)) or "none"
        raise UnknownFault(f"fault {fault!r:.80}: {backend.name} can be given {known}")
    return Faulty(backend, FAULTS[fault])
