"""openmpi reduce_scatter: wrong result

reduce_scatter sum of uint16 (64,): ranks 0 and 1 wrong; on rank 0 34 of 64 elements, the first at 1: 65535
(0xffff), legal is 2514 (0x09d2). The sum saturates instead of wrapping
Promised: reduce_scatter sum: MPI 4.1, 6.9.2, predefined reduction operations and the types that each takes;
6.10.2, MPI_Reduce_scatter
Seen with openmpi Open MPI v5.0.11, package: Open MPI user@localhost Distribution, ident: 5.0.11, repo rev:
v5.0.11rc1, Sep 16, 2026, mpi4py 4.1.2, torch 2.13.0+cpu, Open MPI, 2 ranks.

    mpiexec -n 2 python repro.py
    python repro.py  (calls the mpiexec beside it)

Exit status: 1 the bug is there (or a rank crashed or hung), 0 it is not, 2 a rank raised something else.
"""

import faulthandler
import os
import subprocess
import sys
import traceback

import torch

WORLD = 2
DEADLINE = 30  # seconds: a rank that takes longer hangs

import mpi4py

mpi4py.rc.initialize = False  # not in the process that only starts the ranks
from mpi4py import MPI

TYPES = {torch.uint16: MPI.UINT16_T}


def message(x, ranks=1):
    """A tensor in equal parts for so many ranks, as MPI takes it: memory, elements of a part, datatype.

    A view goes row by row: a derived datatype describes one, and its extent is the way to the next.
    """
    kind, count = TYPES[x.dtype], x.numel()
    if count and not x.is_contiguous():
        for extent, stride in reversed(list(zip(x.shape[1:], x.stride()[1:]))):
            kind = kind.Create_hvector(extent, 1, stride * x.element_size())
        kind = kind.Create_resized(0, x.stride(0) * x.element_size()).Commit()
        count = len(x)
    # The size only satisfies a check of mpi4py.
    memory = MPI.memory.fromaddress(x.data_ptr(), count * max(kind.Get_extent()[1], 1))
    return [memory, count // ranks, kind]


def make_inputs(rank):
    return [torch.randint(0, 2**16, (64,), generator=torch.Generator().manual_seed(rank)).to(torch.uint16),
        torch.randint(0, 2**16, (64,), generator=torch.Generator().manual_seed(2 + rank)).to(torch.uint16)]


def run(rank):
    y = torch.full((64,), 255 - rank, dtype=torch.uint16)
    inputs = make_inputs(rank)
    joined = torch.cat([t.reshape(-1) for t in inputs])
    MPI.COMM_WORLD.Reduce_scatter_block(message(joined, 2), message(y), MPI.SUM)
    return check(rank, "y", y, (sum(make_inputs(r)[rank].long() for r in range(WORLD))).to(torch.uint16))


def check(rank, what, got, want):
    """Compare exactly, print, and return whether it is wrong."""
    right = got == want
    verdict = "right" if right.all() else "wrong"
    observed, expected = got.tolist(), want.tolist()
    print(f"rank {rank}: {what} is {verdict}\n  observed {observed}\n  expected {expected}", flush=True)
    return not right.all()


def worker():
    faulthandler.dump_traceback_later(DEADLINE, exit=True)  # with exit status 1
    try:
        MPI.Init()
        wrong = run(MPI.COMM_WORLD.rank)
        MPI.Finalize()
    except Exception:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(2)  # the other ranks wait for this one
    sys.exit(1 if wrong else 0)


def main():
    if os.environ.keys() & {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE"}:  # mpiexec has started this rank
        worker()
    print(MPI.Get_library_version().splitlines()[0].rstrip("\0"), "mpi4py", mpi4py.__version__, flush=True)
    mpiexec = os.path.join(os.path.dirname(sys.executable), "mpiexec")
    command = [mpiexec, "--oversubscribe", "-n", str(WORLD), sys.executable, __file__]
    status = subprocess.run(command).returncode
    sys.exit(status if status in (0, 2) else 1)


if __name__ == "__main__":
    main()
