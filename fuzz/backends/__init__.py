"""One file a library under test, found by name."""

from __future__ import annotations

from importlib import import_module

from fuzz.backends.base import Backend

BUILT_IN = {
    "gloo": "fuzz.backends.gloo:Gloo",
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


def load(name: str) -> Backend:
    """Return a backend by name.

    Raises:
        UnknownBackend: there is none; the message lists those that are.
    """
    try:
        module, _, attribute = BUILT_IN[name].partition(":")
    except KeyError:
        raise UnknownBackend(f"backend {name!r:.80}: one of {', '.join(BUILT_IN)}") from None
    backend = getattr(import_module(module), attribute)()
    assert isinstance(backend, Backend)
    return backend
