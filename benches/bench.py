"""What cclfuzz costs, on gloo at 2 ranks: `make bench`.

Prints small cases a second beside a bare persistent loop and a world-per-test loop on the same cases, the time of a
4,194,304-element float32 case beside the bare all_reduce, and the time to rebuild a crashed world. Medians of several
runs; nothing is asserted, since machines differ.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import hypothesis
from hypothesis import HealthCheck, Phase

from corpus.case import Call, Case, Tensor, TensorSpec, World
from corpus.codec import dumps, loads
from fuzz.backends import load
from fuzz.backends.base import Place
from fuzz.campaign import Budget
from fuzz.runner import Runner
from fuzz.session import Session, space
from strategies.cases import cases

LARGE = 4_194_304
SMALL_ELEMENTS = 4096


def draw(count: int) -> tuple[list[Case], float]:
    """Draw small legal gloo cases of one call at 2 ranks; return them and the seconds that drawing any one took.

    Longer programs compute between their calls and wait on purpose, which a bare loop does not.
    """
    session = Session(backend="gloo", worlds=(2,), budget=Budget(), layouts="contiguous")
    drawn: list[Case] = []

    @hypothesis.seed(1)
    @hypothesis.settings(
        max_examples=4 * count,
        database=None,
        deadline=None,
        phases=(Phase.generate,),
        suppress_health_check=list(HealthCheck),
    )
    @hypothesis.given(cases(space(session, load("gloo"))))
    def collect(case: Case) -> None:
        drawn.append(case)

    started = time.perf_counter()
    collect()
    seconds = (time.perf_counter() - started) / max(len(drawn), 1)
    single = [case for case in drawn if len(case.program) == 1 and case.program[0].late is None]
    small = [case for case in single if case.memory() <= SMALL_ELEMENTS * 4]
    return small[:count], seconds


def serve(rank: int, size: int, store: str, channel: Connection) -> None:
    """A bare rank: runs the calls of each case that it is sent, and looks at nothing."""
    import torch

    from corpus.meaning import uses
    from oracles.buffers import build

    torch.set_num_threads(1)
    backend = load("gloo")
    backend.open(Place(rank=rank, size=size, init_method=f"file://{store}", device=None, timeout=60))
    while text := channel.recv():
        case = loads(text, 1 << 62)
        buffers = build(case, rank, torch.device("cpu"))
        backend.prepare(case)
        started = time.perf_counter()
        error = ""
        try:
            for call in case.program:
                use = uses(case, call, rank)
                if rank in case.ranks(call):
                    given = {name: buffers[name].view for name in use.inputs + use.outputs}
                    backend.run(case, call, rank, {name: view for name, view in given.items() if view is not None})
        except RuntimeError as failure:
            error = str(failure)
        channel.send((time.perf_counter() - started, error))
    backend.close()


@contextmanager
def bare_world(method: str) -> Iterator[Any]:
    """Two bare ranks; yields a function that runs a case and returns the slowest rank's seconds in the calls."""
    context: Any = multiprocessing.get_context(method)
    with tempfile.TemporaryDirectory() as folder:
        pipes = [context.Pipe() for _ in range(2)]
        ranks = [
            context.Process(target=serve, args=(rank, 2, str(Path(folder) / "store"), pipes[rank][1]))
            for rank in (0, 1)
        ]
        for process in ranks:
            process.start()

        def run(case: Case) -> float:
            text = dumps(case)
            for ours, _ in pipes:
                ours.send(text)
            return max(ours.recv()[0] for ours, _ in pipes)

        yield run
        for ours, _ in pipes:
            ours.send("")
        for process in ranks:
            process.join()


def median_ms(values: list[float]) -> str:
    """The median of seconds, in milliseconds."""
    return f"{1e3 * statistics.median(values):.1f} ms"


def small_cases(runner: Runner, count: int, spawned: int) -> None:
    """Small cases a second: ours, a bare loop, a world for each test."""
    drawn, draw_seconds = draw(count)
    legal = []
    for case in drawn:  # also warms the world up; a case that the library breaks on is no measure of speed
        judgement = runner.run(case).judgement
        if not judgement.failures and not judgement.refused:
            legal.append(case)
    rates = []
    for _ in range(3):
        started = time.perf_counter()
        for case in legal:
            runner.run(case)
        rates.append(len(legal) / (time.perf_counter() - started))
    with bare_world("spawn") as run:
        for case in legal[:20]:
            run(case)
        started = time.perf_counter()
        for case in legal:
            run(case)
        bare = len(legal) / (time.perf_counter() - started)
    started = time.perf_counter()
    for case in legal[:spawned]:
        with bare_world("spawn") as run:
            run(case)
    each = spawned / (time.perf_counter() - started)
    print(f"small gloo cases, 2 ranks, {len(legal)} cases")
    print(f"  cclfuzz, all oracles on     {statistics.median(rates):8.1f} cases/s   (goal: 100 or more)")
    print(f"  drawing, not counted above  {1 / draw_seconds:8.1f} cases/s   ({1e3 * draw_seconds:.1f} ms each)")
    print(f"  bare persistent loop        {bare:8.1f} cases/s   (no supervisor, no oracle)")
    print(f"  a world for each test       {each:8.2f} cases/s   (spawn, {spawned} cases)")


def large_case(runner: Runner, repeats: int) -> None:
    """The whole time of a 4,194,304-element case over the time of its bare all_reduce."""
    case = Case(
        "gloo",
        World(2),
        (Tensor("x", TensorSpec((LARGE,))),),
        (Call("all_reduce", ("x",), ("x",), reduce_op="sum"),),
    )
    with bare_world("spawn") as run:
        bare = [run(replace(case, seed=seed)) for seed in range(repeats + 3)][3:]
    ours = [runner.run(replace(case, seed=seed)).seconds for seed in range(repeats + 3)][3:]
    ratio = statistics.median(ours) / statistics.median(bare)
    print(f"all_reduce of {LARGE:,} float32, 2 ranks, {repeats} runs")
    print(f"  whole case {median_ms(ours)}, bare all_reduce {median_ms(bare)}: {ratio:.2f} times   (goal: 2.5 or less)")


def rebuild(runner: Runner, repeats: int) -> None:
    """Seconds from a crashed 2-rank world to a world that has run its next case."""
    crash = Case(
        "gloo",
        World(2),
        (Tensor("x", TensorSpec((0,))),),
        (Call("broadcast", ("x",), ("x",), root=0),),
        fault="crash-on-empty",
    )
    fine = replace(crash, fault=None)
    plain, after = [], []
    for _ in range(repeats):
        plain.append(runner.run(fine).seconds)
        runner.run(crash)
        after.append(runner.run(fine).seconds)
    seconds = statistics.median(after) - statistics.median(plain)
    print(f"rebuild of a crashed 2-rank world: {seconds:.3f} s, median of {repeats}   (goal: 0.2 or less)")


def main() -> None:
    """Run every benchmark once."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=300, help="small cases")
    parser.add_argument("--spawned", type=int, default=4, help="cases of the world-per-test loop")
    parser.add_argument("--repeats", type=int, default=15, help="runs of the large case and of the rebuild")
    options = parser.parse_args()
    print(f"cclfuzz benchmark: Python {sys.version.split()[0]}, {os.cpu_count()} cores")
    with Runner() as runner:
        small_cases(runner, options.cases, options.spawned)
        large_case(runner, options.repeats)
        rebuild(runner, options.repeats)


if __name__ == "__main__":
    # gloo binds to the interface of the host's name by default; this benchmark stays on loopback.
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
