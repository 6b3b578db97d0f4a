"""How a person can steer the MPI libraries, and the sizes at which they change their minds by themselves."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from corpus.flags import Flag, Scope
from corpus.thresholds import FAMOUS, Threshold

CALL: Final[tuple[Flag, ...]] = (
    Flag(
        "in_place",
        ("1",),
        Scope.CALL,
        "MPI 4.1, 6.2.3: MPI_IN_PLACE as the send buffer; the input stands in the receive buffer",
    ),
    Flag(
        "counts",
        ("1",),
        Scope.CALL,
        "MPI 4.1, 6.5 to 6.10: the variant with counts by rank (Allgatherv, Reduce_scatter) for equal ones too",
    ),
    Flag("split", ("1",), Scope.CALL, "MPI 4.1, 7.4.2: a communicator by MPI_Comm_split, not MPI_Comm_create_group"),
)
"""What the adapter does with a call: which of MPI's ways to say the same it takes."""

_MPICH_ALGORITHMS: Final[Mapping[str, str]] = {
    "ALLREDUCE": "recursive_doubling reduce_scatter_allgather recursive_multiplying tree recexch ring "
    "k_reduce_scatter_allgather smp",
    "BCAST": "binomial scatter_recursive_doubling_allgather scatter_ring_allgather tree pipelined_tree smp",
    "REDUCE": "binomial reduce_scatter_gather smp",
    "ALLGATHER": "brucks recursive_doubling ring recexch_doubling recexch_halving k_brucks",
    "ALLGATHERV": "brucks recursive_doubling ring",
    "ALLTOALL": "brucks pairwise pairwise_sendrecv_replace scattered k_brucks",
    "ALLTOALLV": "pairwise_sendrecv_replace scattered",
    "REDUCE_SCATTER": "pairwise recursive_doubling recursive_halving noncommutative",
    "REDUCE_SCATTER_BLOCK": "pairwise recursive_doubling recursive_halving noncommutative",
}

MPICH: Final[tuple[Flag, ...]] = (
    *CALL,
    *(
        Flag(
            f"MPIR_CVAR_{collective}_INTRA_ALGORITHM",
            tuple(names.split()),
            Scope.PROCESS,
            "MPICH, src/mpi/coll/cvars.txt: the algorithm, where MPIR_CVAR_DEVICE_COLLECTIVES=none leaves it to this",
        )
        for collective, names in _MPICH_ALGORITHMS.items()
    ),
    Flag("MPIR_CVAR_DEVICE_COLLECTIVES", ("none",), Scope.PROCESS, "MPICH, src/mpi/coll/cvars.txt"),
)

_OPENMPI_ALGORITHMS: Final[Mapping[str, int]] = {
    "allreduce": 6,
    "bcast": 9,
    "reduce": 7,
    "allgather": 7,
    "allgatherv": 6,
    "alltoall": 5,
    "alltoallv": 2,
    "reduce_scatter": 4,
    "reduce_scatter_block": 4,
    "gather": 3,
    "scatter": 3,
}
"""How many algorithms the tuned component has, as `ompi_info --param coll tuned --level 9` of Open MPI 5.0.11 lists
them; they are numbered from 1."""

OPENMPI: Final[tuple[Flag, ...]] = (
    *CALL,
    *(
        Flag(
            f"OMPI_MCA_coll_tuned_{collective}_algorithm",
            tuple(str(number) for number in range(1, count + 1)),
            Scope.PROCESS,
            "Open MPI 5.0, coll/tuned: the algorithm, where OMPI_MCA_coll_tuned_use_dynamic_rules=1 asks for it",
        )
        for collective, count in _OPENMPI_ALGORITHMS.items()
    ),
    Flag("OMPI_MCA_coll_tuned_use_dynamic_rules", ("1",), Scope.PROCESS, "Open MPI 5.0, coll/tuned"),
    Flag("OMPI_MCA_op", ("^avx",), Scope.PROCESS, "Open MPI 5.0, op/avx: reductions in scalar code"),
    Flag("OMPI_MCA_coll", ("^sm", "^han", "^tuned"), Scope.PROCESS, "Open MPI 5.0: a component that is not to be used"),
)


def _bytes(source: str, *sizes: int) -> tuple[Threshold, ...]:
    return tuple(Threshold(size, "bytes", source, alignment=8) for size in sizes)


MPICH_SIZES: Final = (
    FAMOUS,
    *_bytes("MPICH, cvars.txt: ALLTOALL_SHORT, ALLREDUCE_SHORT and REDUCE_SHORT_MSG_SIZE", 256, 2048),
    *_bytes("MPICH, cvars.txt: BCAST_SHORT, ALLTOALL_MEDIUM, ALLGATHER_SHORT_MSG_SIZE", 12288, 32768, 81920),
    *_bytes("MPICH, cvars.txt: BCAST_LONG and ALLGATHER_LONG_MSG_SIZE", 524288),
    *_bytes("MPICH, ch4/shm/posix: IQUEUE_CELL_SIZE, beyond which a message is more than one cell", 8192),
)
OPENMPI_SIZES: Final = (
    FAMOUS,
    *_bytes("Open MPI 5.0, btl/sm: eager_limit and max_send_size", 4096, 32768),
    *_bytes("Open MPI 5.0, op/avx: one vector of 64, 32 and 16 bytes", 64, 32, 16),
)
