"""What MPI promises: the standard, version 4.1, for every library that implements it."""

from __future__ import annotations

from functools import cache
from typing import Final

from corpus.contract import Contract, OpContract, Promise
from corpus.dtypes import DTYPES
from fuzz.backends.mpi_buffers import TYPES

_INTEGERS: Final = ("int32", "int64", "int16", "int8", "uint8", "uint16", "uint32", "uint64")
_FLOATS: Final = ("float32", "float16", "float64")
_COMPLEX: Final = ("complex64", "complex128")
_NUMBERS: Final = (*_FLOATS, *_INTEGERS)
_MOVED: Final = tuple(name for name in DTYPES if name in TYPES)

_REDUCE_OPS: Final = {
    "sum": (*_NUMBERS, *_COMPLEX),
    "max": _NUMBERS,
    "min": _NUMBERS,
    "product": _NUMBERS,
    "band": (*_INTEGERS, "bool"),
    "bor": (*_INTEGERS, "bool"),
    "bxor": (*_INTEGERS, "bool"),
}
"""Section 6.9.2, the table of operators and types. float16 is an extension of both libraries (MPIX_C_FLOAT16)."""

_TABLE: Final = "MPI 4.1, 6.9.2, predefined reduction operations and the types that each takes"


@cache
def contract(backend: str) -> Contract:
    """The contract of a library that implements MPI."""
    return Contract(
        backend=backend,
        ops={
            "all_reduce": OpContract(source=f"{_TABLE}; 6.9.6, MPI_Allreduce", reduce_ops=_REDUCE_OPS),
            "broadcast": OpContract(source="MPI 4.1, 6.4, MPI_Bcast", dtypes=_MOVED, in_place=True),
            "reduce": OpContract(source=f"{_TABLE}; 6.9.1, MPI_Reduce", reduce_ops=_REDUCE_OPS),
            "all_gather_into_tensor": OpContract(source="MPI 4.1, 6.7, MPI_Allgather", dtypes=_MOVED, stacked=True),
            "all_gather": OpContract(source="MPI 4.1, 6.7, MPI_Allgatherv", dtypes=_MOVED, uneven=True),
            "reduce_scatter_tensor": OpContract(
                source=f"{_TABLE}; 6.10.1, MPI_Reduce_scatter_block", reduce_ops=_REDUCE_OPS, stacked=True
            ),
            "reduce_scatter": OpContract(
                source=f"{_TABLE}; 6.10.2, MPI_Reduce_scatter", reduce_ops=_REDUCE_OPS, uneven=True
            ),
            "gather": OpContract(source="MPI 4.1, 6.5, MPI_Gatherv", dtypes=_MOVED, uneven=True),
            "scatter": OpContract(source="MPI 4.1, 6.6, MPI_Scatterv", dtypes=_MOVED, uneven=True),
            "all_to_all_single": OpContract(source="MPI 4.1, 6.8, MPI_Alltoallv", dtypes=_MOVED, uneven=True),
            "all_to_all": OpContract(source="MPI 4.1, 6.8, MPI_Alltoallw", dtypes=_MOVED, uneven=True),
            "send_recv": OpContract(source="MPI 4.1, 3.2, MPI_Send and MPI_Recv", dtypes=_MOVED, min_world=2),
            "barrier": OpContract(source="MPI 4.1, 6.3, MPI_Barrier"),
        },
        views=Promise(
            "right",
            "MPI 4.1, 5.1: a derived datatype describes any view. A reduction takes predefined types only (6.9.2), so "
            "there a view is made dense first, as a C program has to",
        ),
        reduce_others=Promise(
            "unchanged", "MPI 4.1, 6.9.1: the receive buffer is significant at the root only; others pass none"
        ),
        nan_extremum=Promise("unspecified", "MPI 4.1, 6.9.2: MPI_MAX is the maximum; nothing is said of NaN"),
        permuted_groups=Promise(True, "MPI 4.1, 7.3.2, MPI_Group_incl: rank i of the new group is ranks[i] of the old"),
    )
