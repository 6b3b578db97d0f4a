"""ray send_recv: refused

send_recv is refused on ranks 0 and 1, which the contract says works: RuntimeError: [enforce fail at
/__w/pytorch/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:801] state_ >= CONNECTED. 1 vs 4. Pair is not
connected ([127.0.0.1]:13733$0 <--> [none])
Promised: ray 2.60 docstring of ray.util.collective.send: 'Send a tensor to a remote process synchronously.'
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


def run(rank):
    if rank in [1, 0]:
        collective.init_collective_group(2, [1, 0].index(rank), "gloo", "group")
    if rank not in [1, 0]:
        return False
    me = [1, 0].index(rank)
    x = torch.tensor([2.0])
    y = torch.full((1,), -1.0 - rank)
    try:
        if me == 0:
            collective.send(x, 1, "group")
        if me == 1:
            collective.recv(y, 0, "group")
    except Exception as error:
        print(f"rank {rank}: raised {type(error).__name__}: {error}", flush=True)
        return True
    return False


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
