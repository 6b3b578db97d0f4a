"""ray all_gather: wrong result

all_gather of float32 (1,): ranks 0 and 1 wrong; on rank 0 1 of 1 element, the first at 0: 1 (0x3f800000),
legal is 2 (0x40000000). Consistent with: it holds rank 0's data where rank 1's belongs; consistent with: it
holds rank 1's data where rank 0's belongs
Promised: all_gather: ray 2.60 docstring of ray.util.collective.allgather: 'Allgather tensors from each
process of the group into a list.'
Seen with ray 2.60.0, torch 2.13.0+cpu, ray.util.collective over gloo, 2 ranks.

    python repro.py

Exit status: 1 the bug is there (or a rank crashed or hung), 0 it is not, 2 a rank raised something else.
"""

import contextlib
import io
import sys
import traceback

import torch
import ray
from ray.util import collective

WORLD = 2
DEADLINE = 30  # seconds: a rank that takes longer hangs


def make_x(rank):
    return torch.arange(1.0) * WORLD + rank + 1


def run(rank):
    if rank in [1, 0]:
        collective.init_collective_group(2, [1, 0].index(rank), "gloo", "group")
    if rank not in [1, 0]:
        return False
    x = make_x(rank)
    outputs = [torch.full((1,), -1.0 - rank) for _ in range(WORLD)]
    collective.allgather(outputs, x, "group")
    wrong = False
    for i, (got, want) in enumerate(zip(outputs, [make_x(r) for r in [1, 0]])):
        wrong |= check(rank, f"outputs[{i}]", got, want)
    return wrong


def check(rank, what, got, want):
    """Compare exactly, print, and return whether it is wrong."""
    right = got == want
    verdict = "right" if right.all() else "wrong"
    observed, expected = got.tolist(), want.tolist()
    print(f"rank {rank}: {what} is {verdict}\n  observed {observed}\n  expected {expected}", flush=True)
    return not right.all()


@ray.remote(num_cpus=0, max_retries=0)


def worker(rank):
    collective.init_collective_group(WORLD, rank, "gloo")
    with contextlib.redirect_stdout(io.StringIO()) as said:
        wrong = run(rank)
    return bool(wrong), said.getvalue()


def main():
    print("ray", ray.__version__, "torch", torch.__version__, flush=True)
    try:
        ray.init(num_cpus=WORLD, include_dashboard=False, log_to_driver=False, _node_ip_address="127.0.0.1")
    except Exception:
        traceback.print_exc()
        sys.exit(2)
    ranks = [worker.remote(rank) for rank in range(WORLD)]
    status = 0
    for rank, result in enumerate(ranks):
        try:
            wrong, said = ray.get(result, timeout=DEADLINE)
        except ray.exceptions.RayTaskError:
            traceback.print_exc()
            sys.exit(2)
        except ray.exceptions.GetTimeoutError:
            print(f"rank {rank} did not return within {DEADLINE} s", flush=True)
            sys.exit(1)
        except ray.exceptions.WorkerCrashedError as error:
            print(f"rank {rank}: {error}", flush=True)
            sys.exit(1)
        print(said, end="", flush=True)
        status |= wrong
    sys.exit(status)


if __name__ == "__main__":
    main()
