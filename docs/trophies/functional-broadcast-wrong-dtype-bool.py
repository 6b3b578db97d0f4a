"""functional broadcast: wrong dtype

broadcast on ranks 0 and 1: int64 was returned, not bool
Seen with torch 2.13.0+cpu, functional collectives over gloo, 2 ranks.

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
import torch.distributed._functional_collectives as funcol

WORLD = 2
DEADLINE = 330  # seconds: a rank that takes longer hangs


def run(rank):
    x = torch.tensor([False])
    @torch.compile(fullgraph=True, dynamic=True)
    def program(x):
        y = funcol.wait_tensor(funcol.broadcast(x, 1, dist.group.WORLD))
        return y
    y = program(x)
    if (y.dtype, tuple(y.shape)) != (torch.bool, (1,)):
        print(f"rank {rank}: y is a {y.dtype} of shape {tuple(y.shape)}, expected bool of {(1,)}", flush=True)
        return True
    return False


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
