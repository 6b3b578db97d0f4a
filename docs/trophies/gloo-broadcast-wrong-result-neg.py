"""gloo broadcast: wrong result

broadcast of float32 (1,): rank 1 wrong; on rank 1 1 of 1 element, the first at 0: 2 (0x40000000), legal is 1
(0x3f800000). It holds what the output held before the call
Promised: broadcast: a view is a Tensor, and the docstrings of torch 2.13 ask for no layout: it works or has
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
    base = torch.full((1,), -1.0 - rank)
    return torch._neg_view(base).copy_(torch.arange(1.0) * WORLD + rank + 1)


def run(rank):
    x = make_x(rank)
    dist.broadcast(x, src=0)
    return check(rank, "x", x, make_x(0))


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
