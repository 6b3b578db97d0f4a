"""gloo reduce: wrong result

reduce sum of float32 (2,): rank 0 wrong; on rank 0 1 of 2 elements, the first at 1: 3 (0x40400000), legal is
7 (0x40e00000). The base storage's elements instead of the view's: the view is taken for a dense block of
memory
reduce: neighbours changed on rank 0; on rank 0, x: elements of the base storage that are not the view's
changed (1 between its strides): +1 elements from its first, -0.18182871 (0xbe3a314e) became -0.21978119
(0xbe610e52)
Promised: reduce sum: a view is a Tensor, and the docstrings of torch 2.13 ask for no layout: it works or has
to be refused, as all_to_all_single (input), send and recv refuse one ('Tensors must be contiguous')
Seen with torch 2.13.0+cpu, gloo, 2 ranks.

    python repro.py
    torchrun --nproc-per-node 2 repro.py

Exit status: 1 the bug is there (or a rank crashed or hung), 0 it is not, 2 a rank raised something else.
"""

import faulthandler
import os
import signal
import sys
import tempfile
import traceback
from multiprocessing import Process

import torch
import torch.distributed as dist

WORLD = 2
DEADLINE = 30  # seconds: a rank that takes longer hangs


def make_x(rank):
    base = torch.full((3,), -1.0 - rank)
    return base[::2].copy_(torch.arange(2.0) * WORLD + rank + 1)


def run(rank):
    x = make_x(rank)
    dist.reduce(x, dst=0)
    wrong = False
    if rank == 0:
        wrong |= check(rank, "x", x, sum(make_x(r) for r in range(WORLD)))
    wrong |= check(rank, "the memory around x", x._base, make_x(rank).copy_(x)._base)
    return wrong


def check(rank, what, got, want):
    """Compare exactly, print, and return whether it is wrong."""
    right = got == want
    verdict = "right" if right.all() else "wrong"
    observed, expected = got.tolist(), want.tolist()
    print(f"rank {rank}: {what} is {verdict}\n  observed {observed}\n  expected {expected}", flush=True)
    return not right.all()


def worker(rank, init_method):
    faulthandler.dump_traceback_later(DEADLINE, exit=True)  # with exit status 1
    try:
        dist.init_process_group("gloo", init_method=init_method, rank=rank, world_size=WORLD)
        wrong = run(rank)
        dist.destroy_process_group()
    except Exception:
        traceback.print_exc()
        sys.exit(2)
    sys.exit(1 if wrong else 0)


def main():
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    if "RANK" in os.environ:  # torchrun has started them
        worker(int(os.environ["RANK"]), "env://")
    print("torch", torch.__version__, flush=True)
    with tempfile.TemporaryDirectory() as folder:
        ranks = [Process(target=worker, args=(r, f"file://{folder}/store"), daemon=True) for r in range(WORLD)]
        for process in ranks:
            process.start()
        for rank, process in enumerate(ranks):
            process.join()
            if process.exitcode < 0:
                print(f"rank {rank} was killed by {signal.Signals(-process.exitcode).name}")
    codes = {process.exitcode for process in ranks}
    sys.exit(max(codes) if codes <= {0, 2} else 1)


if __name__ == "__main__":
    main()
