"""torch's threaded process group: ranks that are threads, and collectives that copy from one to another.

It is a utility of torch's own tests (`torch.testing._internal`). All that is said of it is a comment there: "Threaded
PG is intended to closely simulate the behavior of regular process groups." So it promises nothing, and the contract
has what runs on torch 2.13.0: a fast second opinion, not a library under test.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from importlib import import_module
from typing import Any, ClassVar

from corpus.contract import Contract, OpContract, Promise
from corpus.dtypes import DTYPES
from fuzz.backends.base import Place
from fuzz.backends.c10d import C10d
from fuzz.backends.gloo import CONTRACT as GLOO
from fuzz.backends.gloo import FLOATS, INTEGERS

_LOCK = threading.Lock()
_installed = False


class Threaded(C10d):
    """torch.testing._internal.distributed.multi_threaded_pg: every rank is a thread of one process."""

    name = "threaded"
    summary = "torch's threaded process group, a utility of its tests: a fast second opinion"
    process_group = "threaded"
    launcher: ClassVar[str] = "threads"

    def contract(self, flags: Mapping[str, str]) -> Contract:
        """What runs."""
        return CONTRACT

    def open(self, place: Place) -> None:
        """Join the default process group, in the thread that is to run the calls."""
        _install()
        super().open(place)


def _install() -> None:
    """Give every thread of this process, once for all, a world of process groups of its own."""
    global _installed
    with _LOCK:
        if not _installed:
            core: Any = import_module("torch._C._distributed_c10d")
            threads: Any = import_module("torch.testing._internal.distributed.multi_threaded_pg")
            core._set_thread_isolation_mode(True)
            threads._install_threaded_pg()
            _installed = True


_SOURCE = "torch 2.13 torch/testing/_internal/distributed/multi_threaded_pg.py, ProcessLocalGroup: it has it"
_ALL = tuple(DTYPES)
_COMPLEX = ("complex64", "complex128")
_REDUCED = (*FLOATS, *INTEGERS)
_SUMS = {"sum": (*_REDUCED, "bool", *_COMPLEX), "avg": (*FLOATS, *_COMPLEX)}

CONTRACT = Contract(
    backend="threaded",
    ops={
        "all_reduce": OpContract(
            source=_SOURCE,
            reduce_ops={
                **_SUMS,
                "product": (*_REDUCED, "bool"),
                "max": (*_REDUCED, "bool"),
                "min": (*_REDUCED, "bool"),
                "band": (*INTEGERS, "bool"),
                "bor": (*INTEGERS, "bool"),
                "bxor": (*INTEGERS, "bool"),
            },
            in_place=True,
        ),
        "broadcast": OpContract(source=_SOURCE, dtypes=_ALL, in_place=True),
        "all_gather_into_tensor": OpContract(source=_SOURCE, dtypes=_ALL),
        "all_gather": OpContract(source=_SOURCE, dtypes=_ALL, uneven=True),
        "reduce_scatter_tensor": OpContract(source=_SOURCE, reduce_ops=_SUMS),
        "reduce_scatter": OpContract(source=_SOURCE, reduce_ops=_SUMS),
        "gather": OpContract(source=_SOURCE, dtypes=_ALL),
        "scatter": OpContract(source=_SOURCE, dtypes=_ALL),
        "all_to_all_single": OpContract(source=_SOURCE, dtypes=_ALL, uneven=True),
        "all_to_all": OpContract(source=_SOURCE, dtypes=_ALL, uneven=True),
        "barrier": OpContract(source=_SOURCE),
    },
    views=Promise("right or refused", f"{_SOURCE}; it copies by Tensor.copy_, which takes any view"),
    accumulation=Promise("native or wide", f"{_SOURCE}; it adds by torch.sum, of which nothing is said"),
    average=Promise(("sum/n", "sum*(1/n)", "pre/n", "pre*(1/n)"), f"{_SOURCE}; nothing is said of AVG"),
    permuted_groups=GLOO.permuted_groups,
)
