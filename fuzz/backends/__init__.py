"""One file a library under test, found by name."""

from __future__ import annotations

from importlib import import_module
from typing import Final

from corpus.naming import parse
from fuzz import environments
from fuzz.backends.base import Backend

BUILT_IN: Final = {
    "gloo": "fuzz.backends.gloo:Gloo",
    "dtensor": "fuzz.backends.dtensor:DTensor",
    "functional": "fuzz.backends.functional:Functional",
    "mpich": "fuzz.backends.mpi:Mpich",
    "nccl": "fuzz.backends.nccl:Nccl",
    "openmpi": "fuzz.backends.mpi:OpenMpi",
    "ray": "fuzz.backends.ray_collective:RayCollective",
    "threaded": "fuzz.backends.threaded:Threaded",
    "vllm-model": "fuzz.backends.vllm_model:VllmModel",
}


class UnknownBackend(ValueError):
    """There is no backend of this name."""


def load(spec: str) -> Backend:
    """Return a backend as a case names it: "gloo", "gloo@torch-2.13".

    Raises:
        UnknownBackend: there is none; the message lists those that are.
        environments.TargetError: there is no such environment.
    """
    named = parse(spec)
    backend = make(named.what)
    backend.spec = spec
    if named.environment:
        backend.python = environments.find(named.environment).python
    return backend


def make(what: str) -> Backend:
    """Return a backend by its name; an environment in it is not looked up, as inside a rank, which runs there.

    Raises:
        UnknownBackend: there is none; the message lists those that are.
    """
    name = parse(what).what
    try:
        module, _, attribute = BUILT_IN[name].partition(":")
    except KeyError:
        raise UnknownBackend(f"backend {name!r:.80}: one of {', '.join(BUILT_IN)}") from None
    backend = getattr(import_module(module), attribute)()
    assert isinstance(backend, Backend)
    backend.spec = what
    return backend
