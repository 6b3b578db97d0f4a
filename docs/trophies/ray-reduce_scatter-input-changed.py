"""ray reduce_scatter: input changed

reduce_scatter: input changed on ranks 0 and 1; on rank 0, x0: 1 of 1 element changed, and hold the call's
result: +0 elements from its first, 1 (0x3f800000) became 3 (0x40400000)
Promised: a call writes its outputs and nothing else
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


def make_inputs(rank):
    return [torch.arange(1.0) * WORLD + rank + 1, torch.arange(10, 11.0) * WORLD + rank + 1]


def run(rank):
    y = torch.full((1,), -1.0 - rank)
    inputs = make_inputs(rank)
    collective.reducescatter(y, inputs)
    wrong = False
    for i, (got, want) in enumerate(zip(inputs, make_inputs(rank))):
        wrong |= check(rank, f"inputs[{i}]", got, want)
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
