"""openmpi all_to_all_single: wrong result

all_to_all_single of float32 (10924, 3): ranks 0 and 1 wrong; on rank 0 2 of 32,772 elements, the first at
16384: 7.0986715e-35 (0x06bcb70e), legal is 18755 (0x46928600). Elements 16384 to 16385 were not written: they
hold what the output held before the call; the last 2 elements were not written: they hold what the output
held before the call
Promised: all_to_all_single: MPI 4.1, 5.1: a derived datatype describes any view. A reduction takes predefined
types only (6.9.2), so there a view is made dense first, as a C program has to
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

TYPES = {torch.float32: MPI.FLOAT}


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


def make_x(rank):
    base = torch.full((54618,), -1.0 - rank)
    return base.as_strided((10924, 3), (5, 1),
        0).copy_((torch.arange(32772) % 8191 * WORLD + rank + 1).float().reshape(10924, 3))


def run(rank):
    x = make_x(rank)
    y = torch.full((10924, 3), -1.0 - rank)
    MPI.COMM_WORLD.Alltoall(message(x, 2), message(y, 2))
    return check(rank, "y", y, torch.cat([make_x(r).chunk(WORLD)[rank] for r in range(WORLD)]))


def check(rank, what, got, want):
    """Compare exactly, print, and return whether it is wrong."""
    right = got == want
    wrong = (~right).reshape(-1).nonzero().reshape(-1)
    print(f"rank {rank}: {what}: {len(wrong)} of {right.numel()} elements are wrong", flush=True)
    for at in wrong[:4].tolist():
        observed, expected = got.reshape(-1)[at].item(), want.reshape(-1)[at].item()
        print(f"  at {at}: observed {observed}, expected {expected}", flush=True)
    return len(wrong) > 0


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
