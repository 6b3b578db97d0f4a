"""torch.distributed over gloo, and what it promises.

The documentation has no table of dtypes. What is listed here runs on torch 2.13.0; float8, 16-bit integers and unsigned
ones above 8 bits are refused outside send and recv ("Invalid scalar type"), and gather refuses complex numbers, which
its docstring does not promise. SUM of bool stores a count, not 0 or 1, on the collectives but reduce_scatter_tensor;
nothing is promised of it, so it is not in the contract.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from corpus.contract import Contract, OpContract, Promise
from corpus.dtypes import DTYPES
from corpus.flags import Flag, Scope
from corpus.thresholds import FAMOUS, Threshold
from fuzz.backends.c10d import C10d

FLOATS = ("float32", "bfloat16", "float16", "float64")
INTEGERS = ("int32", "int64", "int8", "uint8")
COMPLEX = ("complex64", "complex128", "complex32")
REDUCIBLE = (*FLOATS, *INTEGERS)
"""What gloo reduces by any op but the bitwise ones, in the order of `corpus.dtypes`."""


class Gloo(C10d):
    """torch.distributed over gloo on a CPU."""

    name = "gloo"
    summary = "torch.distributed over gloo, on CPUs"
    process_group = "gloo"
    thresholds = (
        FAMOUS,
        *(
            Threshold(
                2 * size << 20,
                "bytes",
                "gloo/allreduce.cc: more than 2 segments of 1 MiB a rank above 2 MiB x ranks (strictly)",
                alignment=64,
            )
            for size in (2, 3, 4)
        ),
    )

    flags = (
        Flag(
            "TORCH_DISTRIBUTED_DEBUG",
            ("DETAIL",),
            Scope.WORLD,
            "torch.distributed documentation, debugging: checks every collective call for consistency among the ranks",
        ),
    )

    def contract(self, flags: Mapping[str, str]) -> Contract:
        """What gloo promises, and with TORCH_DISTRIBUTED_DEBUG=DETAIL what its checks do."""
        return CHECKED if flags.get("TORCH_DISTRIBUTED_DEBUG") == "DETAIL" else CONTRACT


def _docstring(function: str, quote: str) -> str:
    return f'torch 2.13 docstring of {function}: "{quote}"'


_TABLE = "torch.distributed documentation, backends: the table says that gloo has it on CPUs"
_MOVED = tuple(name for name in DTYPES if name in (*REDUCIBLE, "bool", *COMPLEX))
_REAL = tuple(name for name in _MOVED if name not in COMPLEX)
_REDUCE_OPS = {
    "sum": (*REDUCIBLE, *COMPLEX),
    "avg": FLOATS,
    "max": (*REDUCIBLE, "bool"),
    "min": (*REDUCIBLE, "bool"),
    "product": (*REDUCIBLE, "bool"),
    "band": (*INTEGERS, "bool"),
    "bor": (*INTEGERS, "bool"),
    "bxor": (*INTEGERS, "bool"),
}
_CONCATENATED_OR_STACKED = "(i) a concatenation ... along the primary dimension; or (ii) a stack ..."

CONTRACT = Contract(
    backend="gloo",
    ops={
        "all_reduce": OpContract(
            source=_docstring("all_reduce", "Complex tensors are supported. ... The function operates in-place."),
            reduce_ops=_REDUCE_OPS,
            in_place=True,
        ),
        "broadcast": OpContract(
            source=_docstring("broadcast", "tensor must have the same number of elements in all processes"),
            dtypes=_MOVED,
            in_place=True,
        ),
        "reduce": OpContract(
            source=_docstring("reduce", "Input and output of the collective. The function operates in-place."),
            reduce_ops=_REDUCE_OPS,
            in_place=True,
        ),
        "all_gather_into_tensor": OpContract(
            source=_docstring("all_gather_single (= all_gather_into_tensor)", _CONCATENATED_OR_STACKED),
            dtypes=_MOVED,
            stacked=True,
        ),
        "all_gather": OpContract(
            source=_docstring("all_gather", "Complex and uneven sized tensors are supported."),
            dtypes=_MOVED,
            uneven=True,
        ),
        "reduce_scatter_tensor": OpContract(
            source=_docstring("reduce_scatter_single (= reduce_scatter_tensor)", _CONCATENATED_OR_STACKED),
            reduce_ops=_REDUCE_OPS,
            stacked=True,
        ),
        "reduce_scatter": OpContract(source=_TABLE, reduce_ops=_REDUCE_OPS),
        "gather": OpContract(
            source=_docstring("gather", "This function requires all tensors to be the same size on each process."),
            dtypes=_REAL,
        ),
        "scatter": OpContract(source=_docstring("scatter", "Complex tensors are supported."), dtypes=_MOVED),
        "all_to_all_single": OpContract(
            source=_docstring("all_to_all_single", "Complex tensors are supported."), dtypes=_MOVED, uneven=True
        ),
        "all_to_all": OpContract(
            source=_docstring("all_to_all", "Complex tensors are supported."), dtypes=_MOVED, uneven=True
        ),
        "send_recv": OpContract(source=_TABLE, dtypes=tuple(DTYPES), min_world=2),
        "barrier": OpContract(
            source=_docstring("barrier", "This collective blocks processes until the whole group enters this function")
        ),
    },
    views=Promise(
        "right or refused",
        "a view is a Tensor, and the docstrings of torch 2.13 ask for no layout: it works or has to be refused, as "
        "all_to_all_single (input), send and recv refuse one ('Tensors must be contiguous')",
    ),
    agreement={
        "all_reduce": Promise(
            True, _docstring("all_reduce", "After the call tensor is going to be bitwise identical in all processes.")
        )
    },
    average=Promise(
        ("sum/n", "pre/n"),
        "torch 2.13 ReduceOp: AVG divides before summing, and is NCCL's alone; gloo has it and divides the sum. Either "
        "is taken",
    ),
    nan_extremum=Promise("unspecified", "nothing is said of NaN in MIN and MAX; gloo keeps either, by position"),
    permuted_groups=Promise(
        True,
        'torch 2.13 docstring of new_group, sort_ranks: "If False, preserve the caller-provided rank order so that '
        'position in the ranks list determines group rank."',
    ),
    regions=Promise(
        ("all_reduce", "all_gather_into_tensor", "reduce_scatter_tensor", "send_recv"),
        _docstring("_coalescing_manager", "Context manager used to coalesce collectives or P2P operations")
        + "; of batch_isend_irecv: "
        + '"NCCL, Gloo, and UCC backend are currently supported."',
    ),
    reduce_others=Promise(
        "unspecified",
        _docstring("reduce", "Only the process with rank dst is going to receive the final result.")
        + "; of the others' buffers nothing is said, and they hold partial results (pytorch#21480)",
    ),
)

_DETAIL = "torch.distributed documentation (2.13), debugging, TORCH_DISTRIBUTED_DEBUG=DETAIL: "
_CONSISTENT = (
    f'{_DETAIL}"the collective itself is checked for consistency by ensuring all collective functions match and are '
    "called with consistent tensor shapes. If this is not the case, a detailed error report is included when the "
    'application crashes, rather than a hang or uninformative error message."'
)
_STUCK = (
    f'{_DETAIL}"these checks include a torch.distributed.monitored_barrier, which ensures all ranks complete their '
    'outstanding collective calls and reports ranks which are stuck."'
)
_COLLECTIVES = tuple(op for op in CONTRACT.ops if op != "send_recv")
"""The checks are of "every collective call": send and recv are none."""

CHECKED = replace(
    CONTRACT,
    illegal={
        "shape": Promise(tuple(op for op in _COLLECTIVES if not CONTRACT.ops[op].uneven), _CONSISTENT),
        "order": Promise(_COLLECTIVES, _CONSISTENT),
        "count": Promise(_COLLECTIVES, _STUCK),
    },
)
"""The contract where torch.distributed checks each call before gloo runs it. Its documentation says nothing of dtypes,
reduce ops and roots that differ; where a collective takes uneven shapes, they may differ.
"""
