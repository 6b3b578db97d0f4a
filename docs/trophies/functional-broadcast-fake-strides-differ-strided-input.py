"""functional broadcast: the fake of _c10d_functional.broadcast has strides that the real result has not

The fake (torch._inductor's and torch.export's view of the operator) keeps the strides of a transposed input, (1, 2); the
operator returns a contiguous tensor, (3, 1). The fake of all_reduce, its sibling, agrees with the operator.
Seen with torch 2.13.0+cpu, functional collectives over gloo, 1 rank.

    python repro.py

Exit status: 1 the bug is there, 0 it is not.
"""

import os
import sys
import tempfile

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
from torch._subclasses.fake_tensor import FakeTensorMode


def strides(x, *arguments):
    """Strides of what an operator returns for x, and of what its fake returns."""
    operator, *given = arguments
    group = dist.group.WORLD.group_name
    real = funcol.wait_tensor(operator(x, *given, group))
    with FakeTensorMode() as mode:
        fake = operator(mode.from_tensor(x), *given, group)
    return real.stride(), fake.stride()


def main():
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    print("torch", torch.__version__)
    x = torch.arange(6.0).view(3, 2).t()
    with tempfile.TemporaryDirectory() as folder:
        dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=0, world_size=1)
        operators = torch.ops._c10d_functional
        found = {
            "broadcast": strides(x, operators.broadcast, 0),
            "all_reduce": strides(x, operators.all_reduce, "sum"),
        }
        dist.destroy_process_group()
    for name, (real, fake) in found.items():
        print(f"{name}: {'right' if real == fake else 'wrong'}\n  observed fake {fake}\n  expected, as the real {real}")
    sys.exit(any(real != fake for real, fake in found.values()))


if __name__ == "__main__":
    main()
