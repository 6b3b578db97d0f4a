"""Seeded faults over a correct backend, by name: our own test of ourselves, never a proof on a third party's code.

Each is a wrong behaviour that a public bug of collectives had, or a small model of it, and says which. A module holds
those of one kind.
"""

from __future__ import annotations

from difflib import get_close_matches
from types import ModuleType

from fuzz.backends.base import Backend
from fuzz.faults import aliasing, endings, groups, layouts, mutants, order, precision, reduce_ops, sizes
from fuzz.faults.base import Fault, Faulty


def _by_name(*kinds: ModuleType) -> dict[str, type[Fault]]:
    return {fault.name: fault for kind in kinds for fault in kind.FAULTS}


KNOWN_BUGS = _by_name(reduce_ops, sizes, precision, layouts, aliasing, groups, order, endings)
"""Faults that stand for public bugs, by name."""

FAULTS = {**KNOWN_BUGS, **_by_name(mutants)}
"""Every fault, by name: known bugs, and the smallest breach of each line of a contract."""


class UnknownFault(ValueError):
    """There is no fault of this name for this backend."""


def names(backend: Backend) -> dict[str, str]:
    """Every fault that the backend can be given, with what it does wrong."""
    generic = {name: fault.summary for name, fault in FAULTS.items() if fault.applies(backend)}
    return {**backend.faults, **generic}


def wrap(backend: Backend, fault: str | None) -> Backend:
    """Return the backend with a fault seeded, or itself where `fault` is None or the backend's own.

    Raises:
        UnknownFault: there is none of this name; the message says which are like it.
    """
    if fault is None or fault in backend.faults:
        return backend
    known = names(backend)
    if fault not in known:
        like = get_close_matches(fault[:80], known, n=5, cutoff=0.5)
        message = f"fault {fault!r:.80}: {backend.name} can be given {len(known)} faults"
        raise UnknownFault(message + (f", such as {', '.join(like)}" if like else "; `cclfuzz backends` lists them"))
    return Faulty(backend, FAULTS[fault]())
