"""Runs the `run` functions of many scripts in one world of ranks a world size: cheaper than a world a script.

`python worlds.py FOLDER MODE` runs every *.py in FOLDER and prints {file: [what each rank returned]} as JSON. MODE is
"gloo" (the real library), "dense" (gloo behind a layer that hands it dense copies: a library that is right for every
layout and dtype), "spilling" (the same, and it changes memory around the views), or "idle" (it does nothing).
"""

from __future__ import annotations

import contextlib
import io
import json
import multiprocessing
import os
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

CALLS = (
    *("all_reduce", "broadcast", "reduce", "all_gather_into_tensor", "all_gather", "reduce_scatter_tensor"),
    *("reduce_scatter", "gather", "scatter", "all_to_all_single", "all_to_all", "send", "recv"),
    *("isend", "irecv", "barrier"),
)


class Done:
    def wait(self) -> None:
        pass


def idle(*args: Any, **kwargs: Any) -> Done:
    return Done()


def dense(function: Any, spilling: bool = False) -> Any:
    """The function on dense copies of its tensors, which are copied back afterwards."""

    def call(*args: Any, **kwargs: Any) -> Any:
        copies: list[tuple[torch.Tensor, torch.Tensor]] = []

        def copied(value: Any) -> Any:
            if isinstance(value, list) and value and isinstance(value[0], torch.Tensor):
                return [copied(item) for item in value]
            if not isinstance(value, torch.Tensor):
                return value
            copy = value.resolve_conj().resolve_neg().contiguous().clone()
            copies.append((value, copy))
            moved = copy.dtype not in GLOO and function.__name__ == "broadcast"
            return copy.reshape(-1).view(torch.uint8) if moved else copy

        work = function(*map(copied, args), **kwargs)
        if isinstance(work, dist.Work):
            work.wait()
        for value, copy in copies:
            if spilling and value._base is not None:
                value._base.add_(1)
            if 0 not in value.stride() and value.untyped_storage().nbytes() >= value.nbytes:
                value.copy_(copy)
        return Done()

    return call


GLOO = {torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.int32, torch.int64, torch.int8, torch.uint8}
GLOO |= {torch.bool, torch.complex64, torch.complex128}


def rank_main(rank: int, size: int, mode: str, paths: list[Path], store: str, results: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=size)
    barrier = dist.barrier
    for name in CALLS:
        if mode != "gloo":
            setattr(dist, name, idle if mode == "idle" else dense(getattr(dist, name), mode == "spilling"))
    found = {}
    for path in paths:
        output = io.StringIO()
        space: dict[str, Any] = {"__name__": "script"}
        try:
            exec(compile(path.read_text(), path.name, "exec"), space)
            with contextlib.redirect_stdout(output):
                wrong = space["run"](rank)
            found[path.name] = f"wrong: {output.getvalue()}" if wrong else "right"
        except Exception as error:
            found[path.name] = f"raised {type(error).__name__}: {error}"
    Path(results).write_text(json.dumps(found))
    barrier()  # a rank that ends early breaks the groups that others are making


def main(folder: Path, mode: str) -> None:
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.set_num_threads(1)
    by_size: dict[int, list[Path]] = {}
    for path in sorted(folder.glob("*.py")):
        match = re.search(r"^WORLD = (\d+)", path.read_text(), re.MULTILINE)
        assert match is not None, path
        by_size.setdefault(int(match[1]), []).append(path)
    everything: dict[str, list[str]] = {}
    with tempfile.TemporaryDirectory() as scratch:
        for size, paths in by_size.items():
            files = [f"{scratch}/{size}-{rank}.json" for rank in range(size)]
            ranks = [
                multiprocessing.Process(target=rank_main, args=(r, size, mode, paths, f"{scratch}/{size}", files[r]))
                for r in range(size)
            ]
            for process in ranks:
                process.start()
            for process in ranks:
                process.join(60)
                process.kill()
            for file in files:
                for name, verdict in json.loads(Path(file).read_text()).items():
                    everything.setdefault(name, []).append(verdict)
    sys.stdout.write(json.dumps(everything))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
