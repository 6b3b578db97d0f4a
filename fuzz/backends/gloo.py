"""torch.distributed over gloo, and what it promises."""

from __future__ import annotations

from collections.abc import Mapping

from corpus.contract import Contract, OpContract, Promise
from corpus.dtypes import DTYPES
from corpus.thresholds import FAMOUS, Threshold
from fuzz.backends.c10d import C10d

_DOC = "torch.distributed documentation"
_TABLE = f"{_DOC}, table of backends: gloo, CPU"

FLOATS = ("float32", "bfloat16", "float16", "float64")
INTEGERS = ("int32", "int64", "int8", "uint8")
COMPLEX = ("complex64", "complex128")
REDUCIBLE = (*FLOATS, *INTEGERS)
"""What gloo reduces, in the order of `corpus.dtypes`."""


class Gloo(C10d):
    """torch.distributed over gloo on a CPU."""

    name = "gloo"
    summary = "torch.distributed over gloo, on CPUs"
    process_group = "gloo"
    thresholds = (
        FAMOUS,
        Threshold(1 << 20, "bytes", "gloo/allreduce.cc: segments of at most 1 MiB", alignment=64),
    )

    def contract(self, flags: Mapping[str, str]) -> Contract:
        """gloo has no flags that change what it promises."""
        return CONTRACT


_MOVED = tuple(name for name in DTYPES if name in (*FLOATS, *INTEGERS, "bool", *COMPLEX))
_REDUCE_OPS = {
    "sum": (*REDUCIBLE, *COMPLEX),
    "avg": (*FLOATS, *COMPLEX),
    "max": REDUCIBLE,
    "min": REDUCIBLE,
    "product": REDUCIBLE,
    "band": (*INTEGERS, "bool"),
    "bor": (*INTEGERS, "bool"),
    "bxor": (*INTEGERS, "bool"),
}

CONTRACT = Contract(
    backend="gloo",
    ops={
        "all_reduce": OpContract(source=_TABLE, reduce_ops=_REDUCE_OPS, in_place=True),
        "broadcast": OpContract(source=_TABLE, dtypes=_MOVED, in_place=True),
        "reduce": OpContract(source=_TABLE, reduce_ops=_REDUCE_OPS, in_place=True),
        "all_gather_into_tensor": OpContract(source=_TABLE, dtypes=_MOVED),
        "all_gather": OpContract(source=_TABLE, dtypes=_MOVED),
        "reduce_scatter_tensor": OpContract(source=_TABLE, reduce_ops=_REDUCE_OPS),
        "reduce_scatter": OpContract(source=_TABLE, reduce_ops=_REDUCE_OPS),
        "gather": OpContract(source=_TABLE, dtypes=_MOVED),
        "scatter": OpContract(source=_TABLE, dtypes=_MOVED),
        "all_to_all_single": OpContract(source=_TABLE, dtypes=_MOVED, uneven=True),
        "send_recv": OpContract(source=_TABLE, dtypes=tuple(DTYPES), min_world=2),
        "barrier": OpContract(source=_TABLE),
    },
    views=Promise(
        "right or refused",
        "docstrings of torch.distributed take a Tensor and name no layout; a view is a Tensor, or it has to be refused",
    ),
    agreement={
        "all_reduce": Promise(
            True, 'docstring of all_reduce: "After the call tensor is going to be bitwise identical in all processes."'
        )
    },
)
