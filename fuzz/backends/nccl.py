"""torch.distributed over NCCL: the same adapter as gloo's, on GPUs."""

from __future__ import annotations

from collections.abc import Mapping

from corpus.contract import Contract, OpContract, Promise
from corpus.flags import Flag, Scope
from corpus.thresholds import FAMOUS, Threshold
from fuzz.backends.c10d import C10d
from fuzz.backends.gpus import gpu_count

_DOC = "NVIDIA NCCL user guide, ncclDataType_t and ncclRedOp_t"
_TABLE = "torch.distributed documentation, table of backends: nccl, GPU"

_FLOATS = ("float32", "bfloat16", "float16", "float64", "float8_e4m3fn", "float8_e5m2")
_INTEGERS = ("int32", "int64", "int8", "uint8")
_NUMBERS = (*_FLOATS, *_INTEGERS)
_MOVED = (*_NUMBERS, "bool", "complex64", "complex128")
_REDUCE_OPS = {
    "sum": _NUMBERS,
    "avg": _FLOATS,
    "max": _NUMBERS,
    "min": _NUMBERS,
    "product": _NUMBERS,
    "premul_sum": ("float32", "bfloat16", "float16", "float64"),
}


def _variable(name: str, *values: str) -> Flag:
    """A variable of NCCL's. Those that are numbers are read once a process and kept (src/misc/param.cc)."""
    return Flag(name, values, Scope.PROCESS, f"NVIDIA NCCL user guide, environment variables, {name}")


FLAGS = (
    # Of the algorithms all collectives have only the ring; by collective: since NCCL 2.24 (parseList, src/graph).
    _variable("NCCL_ALGO", "ring", "ring;allreduce:tree", "ring;allreduce:nvls,ring"),
    # LL128 is right on some platforms only, so nobody is to force it.
    _variable("NCCL_PROTO", "Simple", "LL", "^LL128"),
    _variable("NCCL_P2P_DISABLE", "1"),
    _variable("NCCL_SHM_DISABLE", "1"),
    _variable("NCCL_NVLS_ENABLE", "0", "1"),
    _variable("NCCL_CUMEM_ENABLE", "0", "1"),
    _variable("NCCL_MIN_NCHANNELS", "1", "16"),
    _variable("NCCL_MAX_NCHANNELS", "1", "2"),
    _variable("NCCL_BUFFSIZE", "65536", "1048576"),
    _variable("NCCL_LAUNCH_MODE", "PARALLEL", "GROUP"),
)


class Nccl(C10d):
    """torch.distributed over NCCL. Its contract has not met a GPU yet: see docs/gpus.md."""

    name = "nccl"
    summary = "torch.distributed over NCCL, one GPU a rank"
    process_group = "nccl"
    gpus_per_rank = 1
    flags = FLAGS
    thresholds = (
        FAMOUS,
        Threshold(8 << 20, "bytes", "vLLM 0.33.0: CUSTOM all-reduce below 8 MiB, NCCL from there on"),
    )

    def unavailable(self) -> str | None:
        """No NVIDIA GPU on this machine."""
        return None if gpu_count() else "no NVIDIA GPU on this machine (give --ray-address of a cluster that has some)"

    def contract(self, flags: Mapping[str, str]) -> Contract:
        """NCCL's variables choose algorithms; none changes a promise."""
        return CONTRACT


CONTRACT = Contract(
    backend="nccl",
    ops={
        "all_reduce": OpContract(source=_TABLE, reduce_ops=_REDUCE_OPS, in_place=True),
        "broadcast": OpContract(source=_TABLE, dtypes=_MOVED, in_place=True),
        "reduce": OpContract(source=_TABLE, reduce_ops=_REDUCE_OPS, in_place=True),
        "all_gather_into_tensor": OpContract(source=_TABLE, dtypes=_MOVED),
        "all_gather": OpContract(source=_TABLE, dtypes=_MOVED, uneven=True),
        "reduce_scatter_tensor": OpContract(source=_TABLE, reduce_ops=_REDUCE_OPS),
        "reduce_scatter": OpContract(source=_TABLE, reduce_ops=_REDUCE_OPS),
        "gather": OpContract(source=_TABLE, dtypes=_MOVED),
        "scatter": OpContract(source=_TABLE, dtypes=_MOVED),
        "all_to_all_single": OpContract(source=_TABLE, dtypes=_MOVED, uneven=True),
        "all_to_all": OpContract(source=_TABLE, dtypes=_MOVED, uneven=True),
        "send_recv": OpContract(source=_TABLE, dtypes=_MOVED, min_world=2),
        "barrier": OpContract(source=_TABLE),
    },
    views=Promise("right or refused", "ProcessGroupNCCL checks that tensors are contiguous, and says so"),
    agreement={
        "all_reduce": Promise(
            True, 'docstring of all_reduce: "After the call tensor is going to be bitwise identical in all processes."'
        )
    },
    regions=Promise(
        ("all_reduce", "all_gather_into_tensor", "reduce_scatter_tensor"),
        'docstring of _coalescing_manager: "Context manager used to coalesce collectives or P2P operations"; '
        "not send_recv: as a group's first call batch_isend_irecv is undefined unless all of its ranks take part",
    ),
    permuted_groups=Promise(
        True,
        'torch 2.13 docstring of new_group, sort_ranks: "If False, preserve the caller-provided rank order so that '
        'position in the ranks list determines group rank."',
    ),
    accumulation=Promise("native or wide", f"{_DOC}: no accumulation type is promised; in-network reduction is wide"),
    average=Promise(("sum/n", "sum*(1/n)", "pre*(1/n)"), f"{_DOC}: the order of scaling and summing is not promised"),
)
