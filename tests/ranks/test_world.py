"""What a world's ranks report, whatever becomes of them, and that the world goes on afterwards."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import ray
from conftest import TOY

from fuzz.ranks import process
from fuzz.ranks.cluster import Cluster
from fuzz.ranks.crew import PlacementError
from fuzz.ranks.pool import Place, World, WorldConfig, rendezvous, visible_devices
from oracles.observation import Observation, Status

LONG = 60.0
"""Seconds. A deadline that no test reaches."""

SHORT = 1.5
"""Seconds. A deadline that is meant to pass."""


def run(world: World, deadline: float = LONG, **commands: list[str]) -> list[Observation]:
    """Run the commands of each rank: `run(world, r0=["abort"])`."""
    return world.run(json.dumps({name[1:]: given for name, given in commands.items()}), deadline)


def pids(world: World) -> list[int]:
    return [observation.reports["pid"] for observation in run(world, r0=["pid"], r1=["pid"])]


def parent(pid: int) -> int:
    """Return the process that forked one: for a rank, its zygote."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def goes_on(world: World) -> bool:
    return [observation.reports.get("sum") for observation in run(world)] == [[3.0] * 4] * 2


def meanwhile(marker: Path, action: Callable[[], Any]) -> threading.Thread:
    """Do something once a rank has touched the marker."""

    def wait() -> None:
        while not marker.exists():
            time.sleep(0.005)
        action()

    thread = threading.Thread(target=wait)
    thread.start()
    return thread


def test_round_trip(pair: World) -> None:
    observations = run(pair, r1=["device", "print hello"])
    assert [(seen.rank, seen.status, seen.call) for seen in observations] == [
        (0, Status.OK, 0),
        (1, Status.OK, 2),
    ]
    assert [seen.reports["sum"] for seen in observations] == [[3.0] * 4] * 2
    assert observations[1].reports["device"] is None


def test_processes_stay_from_case_to_case(pair: World) -> None:
    first = pids(pair)
    rebuilds = pair.rebuilds
    assert pids(pair) == first
    assert len(set(first)) == 2
    assert pair.rebuilds == rebuilds


@pytest.mark.parametrize(
    ("command", "how"),
    [
        ("segfault", "SIGSEGV"),
        ("abort", "SIGABRT"),
        ("exit 3", "exit 3"),
        ("exit 0", "exit 0"),
        ("leave 4", "exit 4"),
    ],
)
def test_a_death_is_named(pair: World, command: str, how: str) -> None:
    assert goes_on(pair)
    rebuilds = pair.rebuilds
    dead, other = run(pair, r0=["print last words", command], r1=["hang"])
    assert (dead.status, dead.signal, dead.order, dead.call) == (Status.DIED, how, 0, 1)
    assert "last words" in dead.output
    assert ("in _do" in dead.stack) == how.startswith("SIG")
    assert (other.status, other.call) == (Status.CUT_SHORT, 0)
    assert "in _do" in other.stack
    assert goes_on(pair)
    assert pair.rebuilds == rebuilds + 1
    assert pair.last_rebuild_seconds > 0


def test_deaths_are_numbered_in_order(pair: World) -> None:
    late, early = run(pair, r0=["sleep 0.3", "abort"], r1=["abort"])
    assert (early.order, late.order) == (0, 1)
    assert goes_on(pair)


def test_killed_from_outside(pair: World, tmp_path: Path) -> None:
    marker = tmp_path / "begun"
    victim = pids(pair)[1]
    killer = meanwhile(marker, lambda: os.kill(victim, signal.SIGKILL))
    other, dead = run(pair, r0=["hang"], r1=[f"touch {marker}", "hang"])
    killer.join()
    assert (dead.status, dead.signal, dead.call) == (Status.DIED, "SIGKILL", 1)
    assert other.status is Status.CUT_SHORT
    assert goes_on(pair)


def test_killed_between_two_cases(pair: World) -> None:
    victim = pids(pair)[0]
    os.kill(victim, signal.SIGKILL)
    dead, _ = run(pair)
    assert (dead.status, dead.signal, dead.call) == (Status.DIED, "SIGKILL", -1)
    assert goes_on(pair)


def test_stopped_from_outside(pair: World, tmp_path: Path) -> None:
    marker = tmp_path / "begun"
    victim = pids(pair)[0]
    stopper = meanwhile(marker, lambda: os.kill(victim, signal.SIGSTOP))
    stopped, other = run(pair, SHORT, r0=[f"touch {marker}", "hang"])
    stopper.join()
    assert (stopped.status, stopped.call) == (Status.STOPPED, 1)
    assert (other.status, other.call) == (Status.HUNG, 0)
    assert "all_reduce" in other.stack
    assert goes_on(pair)
    assert process.state(victim) in ("", "Z")


def test_a_hang_shows_every_ranks_stack_and_last_call(pair: World) -> None:
    hung, waiting = run(pair, SHORT, r0=["device", "print before", "hang"])
    assert (hung.status, hung.call) == (Status.HUNG, 2)
    assert "in _do" in hung.stack
    assert "before" in hung.output
    assert (waiting.status, waiting.call) == (Status.HUNG, 0)
    assert "all_reduce" in waiting.stack
    assert goes_on(pair)


def test_what_the_library_raises(pair: World) -> None:
    raised, _ = run(pair, SHORT, r0=["raise no such thing"])
    assert (raised.status, raised.error, raised.error_type) == (
        Status.RAISED,
        "no such thing",
        "RuntimeError",
    )
    assert goes_on(pair)


def test_a_defect_of_the_executor_is_not_the_librarys(pair: World) -> None:
    lost, waiting = run(pair, SHORT, r0=["defect of ours"])
    assert (lost.status, waiting.status) == (Status.LOST, Status.CUT_SHORT)
    assert "KeyError: 'of ours'" in lost.error
    assert goes_on(pair)


def test_environment_is_set_and_unset(cluster: Cluster, pair: World) -> None:
    asked = ["getenv CCLFUZZ_TEST_SET", "getenv CCLFUZZ_TEST_INHERITED", "getenv RAY_JOB_ID"]
    plain = run(pair, r0=asked)[0].reports
    assert [plain[name] for name in asked] == [None, "inherited", None]
    environment = (("CCLFUZZ_TEST_SET", "1"), ("CCLFUZZ_TEST_INHERITED", None))
    with World(WorldConfig("gloo", 2, environment, executor=TOY), cluster) as world:
        for observation in run(world, r0=asked, r1=asked):
            assert [observation.reports[name] for name in asked] == ["1", None, None]


def test_ranks_and_their_fork_server_have_one_thread_and_neither_ray_nor_hypothesis(pair: World) -> None:
    for observation in run(pair, r0=["modules", "threads"], r1=["modules", "threads"]):
        assert observation.reports["threads"] == [1, 1]
        assert not {"ray", "hypothesis"} & set(observation.reports["modules"])
    (child, _) = pids(pair)
    assert "Threads:\t1\n" in Path(f"/proc/{parent(child)}/status").read_text()


def test_actors_have_neither_torch_nor_hypothesis(pair: World) -> None:
    assert goes_on(pair)
    seat = pair._crew._seats[0]
    assert seat is not None
    modules = ray.get(seat.actor.__ray_call__.remote(lambda _: {name.split(".")[0] for name in sys.modules}))
    assert not {"torch", "hypothesis"} & modules
    command = "import sys, fuzz.ranks.actor; print({'torch', 'numpy', 'ray'} & set(sys.modules))"
    said = subprocess.run([sys.executable, "-c", command], capture_output=True, text=True, check=True)
    assert said.stdout == "set()\n"


def test_a_world_that_does_not_open(cluster: Cluster) -> None:
    with World(WorldConfig("open-1", 2, executor=TOY), cluster) as world:
        for _ in range(2):
            waiting, failed = run(world)
            assert (failed.status, failed.call) == (Status.RAISED, -1)
            assert failed.error == "opening the world: no such backend"
            assert (waiting.status, waiting.call) == (Status.CUT_SHORT, -1)
            assert waiting.error == "while the world was being opened"


def test_an_executor_that_is_not_there(cluster: Cluster) -> None:
    with World(WorldConfig("gloo", 2, executor="toy:Missing"), cluster) as world:
        for observation in run(world):
            assert observation.status is Status.LOST
            assert "cannot import toy:Missing" in observation.error


def test_an_environment_without_what_ranks_need(cluster: Cluster, tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho there is no torch here >&2\nexit 1\n")
    python.chmod(0o700)
    for path in (python, tmp_path / "absent"):
        with World(WorldConfig("gloo", 1, python=str(path), executor=TOY), cluster) as world:
            (observation,) = run(world)
        assert observation.status is Status.LOST
        assert str(path) in observation.error
        assert ("there is no torch here" in observation.error) == (path == python)


def test_another_interpreter(cluster: Cluster, other_python: str) -> None:
    with World(WorldConfig("gloo", 1, python=other_python, executor=TOY), cluster) as world:
        (observation,) = run(world)
    assert observation.reports == {"sum": [1.0] * 4}


def test_a_lost_actor_is_replaced(pair: World, tmp_path: Path) -> None:
    marker = tmp_path / "begun"
    children = pids(pair)
    seat = pair._crew._seats[1]
    assert seat is not None
    killer = meanwhile(marker, lambda: ray.kill(seat.actor))
    other, lost = run(pair, r0=["hang"], r1=[f"touch {marker}", "hang"])
    killer.join()
    assert lost.status is Status.LOST
    assert lost.error.startswith("the supervisor of rank 1 is gone: ")
    assert other.status is Status.CUT_SHORT
    assert goes_on(pair)
    assert all(process.state(child) in ("", "Z") for child in children)


def test_a_lost_fork_server_is_replaced(cluster: Cluster, other_python: str, tmp_path: Path) -> None:
    marker = tmp_path / "begun"
    with World(WorldConfig("gloo", 2, python=other_python, executor=TOY), cluster) as world:
        server = parent(pids(world)[0])
        killer = meanwhile(marker, lambda: os.kill(server, signal.SIGKILL))
        observations = run(world, r0=[f"touch {marker}", "hang"], r1=["hang"])
        killer.join()
        assert [observation.status for observation in observations] == [Status.LOST] * 2
        assert goes_on(world)


def test_a_fork_server_that_died_with_another_world_is_no_loss(cluster: Cluster, other_python: str) -> None:
    config = WorldConfig("closed", 2, python=other_python, executor=TOY)
    with World(replace(config, backend="open"), cluster) as held:
        with World(config, cluster) as closed:
            assert goes_on(closed)
        server = parent(pids(held)[0])
        os.kill(server, signal.SIGKILL)
        while Path(f"/proc/{server}").exists() and "\nState:\tZ" not in Path(f"/proc/{server}/status").read_text():
            time.sleep(0.005)
        # Its actors are those of the world that was closed, and have the connection of then.
        with World(config, cluster) as again:
            assert goes_on(again)
        # The world whose ranks it held has lost them, says so once, and goes on.
        assert [seen.status for seen in run(held)] == [Status.LOST] * 2
        assert goes_on(held)


def test_ranks_see_all_of_their_worlds_gpus(cluster: Cluster) -> None:
    asked = ["device", "getenv CUDA_VISIBLE_DEVICES"]
    with World(WorldConfig("none", 2, gpus_per_rank=1, executor=TOY), cluster) as world:
        reports = [observation.reports for observation in run(world, r0=asked, r1=asked)]
    assert [report["device"] for report in reports] == [0, 1]
    assert [sorted(report[asked[1]].split(",")) for report in reports] == [["0", "1"]] * 2


def test_gpus_that_are_not_there(cluster: Cluster) -> None:
    with (
        World(WorldConfig("none", 3, gpus_per_rank=1, executor=TOY), cluster) as world,
        pytest.raises(PlacementError, match="3 ranks needs 3 GPUs; the cluster has 2"),
    ):
        run(world)


def test_a_world_across_nodes() -> None:
    places = [Place("10.0.0.1", 5, ("3", "1")), Place("10.0.0.2", 6, ("0",)), Place("10.0.0.1", 7, ("0",))]
    assert rendezvous(places, Path("/store")) == "tcp://10.0.0.1:5"
    assert rendezvous(places[:1], Path("/store")) == "file:///store"
    assert rendezvous([Place("fd00::1", 5, ()), places[0]], Path("/store")) == "tcp://[fd00::1]:5"
    assert [visible_devices(places, rank) for rank in range(3)] == [("3,1,0", 0), ("0", 0), ("3,1,0", 2)]
    assert visible_devices([Place("10.0.0.1", 5, ())], 0) == ("", None)


def test_actors_are_kept_for_the_next_world_and_files_are_not(cluster: Cluster) -> None:
    config = WorldConfig("gloo", 1, executor=TOY)
    actors = []
    for _ in range(2):
        with World(config, cluster) as world:
            assert run(world)[0].status is Status.OK
            seat = world._crew._seats[0]
            assert seat is not None
            actors.append(seat.actor)
            (folder,) = cluster.directory.glob(f"ranks/*/{world._name}")
        assert not folder.exists()
    assert actors[0] is actors[1]
