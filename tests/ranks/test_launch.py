"""Worlds that mpiexec starts: a rank's end is told as in any other world, and nothing is left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import ray
from test_cluster import command, listening, sockets, started, wait_until_gone
from test_world import SHORT, meanwhile, run

from fuzz import environments
from fuzz.ranks.cluster import Cluster
from fuzz.ranks.launch import LAUNCHERS
from fuzz.ranks.pool import World, WorldConfig
from fuzz.ranks.process import descendants
from oracles.observation import Status

LEFT = ("mpich_*", "sm_segment.*", "vader_segment.*")
"""Patterns of what MPI libraries leave in /dev/shm."""

DRIVER = """
import sys
from fuzz.ranks.cluster import Cluster
from fuzz.ranks.pool import World, WorldConfig

_, python, library = sys.argv
config = WorldConfig("none", 2, python=python, executor="mpi_toy:MpiToy", launcher=library)
with Cluster.connect(None) as cluster, World(config, cluster) as world:
    world.run("{}", 60)
    print(cluster.directory, flush=True)
    world.run('{"0": ["hang"], "1": ["hang"]}', 600)
"""


def python_of(library: str, folder: Path) -> str:
    """An interpreter of the library's environment that finds the toys; its mpiexec lies beside it."""
    try:
        real = Path(environments.find(library).python).parent
    except environments.TargetError as error:
        pytest.skip(str(error))
    (folder / "python").write_text(
        f'#!/bin/sh\nPYTHONPATH="$PYTHONPATH:{Path(__file__).parent}" exec {real / "python"} "$@"\n'
    )
    program = LAUNCHERS[library].program
    (folder / program).write_text(f'#!/bin/sh\nexec {real / program} "$@"\n')
    for script in (folder / "python", folder / program):
        script.chmod(0o700)
    return str(folder / "python")


@pytest.fixture(scope="module", params=sorted(LAUNCHERS))
def config(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> WorldConfig:
    library: str = request.param
    python = python_of(library, tmp_path_factory.mktemp(library))
    return WorldConfig("none", 2, python=python, executor="mpi_toy:MpiToy", launcher=library)


@pytest.fixture(scope="module")
def pair(config: WorldConfig, cluster: Cluster) -> Iterator[World]:
    with World(config, cluster) as world:
        yield world


def pids(world: World) -> list[int]:
    return [seen.reports["pid"] for seen in run(world, r0=["pid"], r1=["pid"])]


def goes_on(world: World) -> bool:
    return [seen.reports.get("sum") for seen in run(world)] == [3.0] * 2


def launched(world: World) -> list[int]:
    """The mpiexec of a world and everything below it."""
    mine = str(Path(world.config.python).parent)
    folder = f"/{world._name}/mpiexec/"
    below = descendants(os.getpid())
    relays = [pid for pid in below if "relay" in command(pid) and folder in command(pid)]
    assert relays, f"no relay of {mine} among {[command(pid) for pid in below]}"
    return [pid for pid in below if folder in command(pid)]


def in_shared_memory() -> set[Path]:
    return {path for pattern in LEFT for path in Path("/dev/shm").glob(pattern)}


def actor(world: World) -> object:
    return world._crew._actor  # type: ignore[union-attr]


def test_ranks_are_those_of_mpiexec(pair: World) -> None:
    assert goes_on(pair)
    asked = ["getenv PMI_RANK", "getenv OMPI_COMM_WORLD_RANK"]
    for rank, seen in enumerate(run(pair, r0=asked, r1=asked)):
        assert str(rank) in [seen.reports[name] for name in asked]
    assert len([pid for pid in launched(pair) if "relay" in command(pid).split()]) >= 2


def test_processes_stay_from_case_to_case(pair: World) -> None:
    first, rebuilds = pids(pair), pair.rebuilds
    assert pids(pair) == first
    assert pair.rebuilds == rebuilds


@pytest.mark.parametrize(("command", "how"), [("segfault", "SIGSEGV"), ("abort", "SIGABRT"), ("exit 3", "exit 3")])
def test_a_death_is_named(pair: World, command: str, how: str) -> None:
    assert goes_on(pair)
    rebuilds = pair.rebuilds
    dead, other = run(pair, r0=["print last words", command], r1=["hang"])
    assert (dead.status, dead.signal, dead.order, dead.call) == (Status.DIED, how, 0, 1)
    assert "last words" in dead.output
    assert ("in _do" in dead.stack) == how.startswith("SIG")
    assert (other.status, other.call) == (Status.CUT_SHORT, 0)
    assert goes_on(pair)
    assert pair.rebuilds == rebuilds + 1


def test_who_waits_in_the_library_for_a_dead_rank_is_cut_short(pair: World) -> None:
    assert goes_on(pair)
    waiting, dead = run(pair, r1=["abort"])
    assert (dead.status, dead.signal) == (Status.DIED, "SIGABRT")
    assert waiting.status is Status.CUT_SHORT
    assert "in run" in waiting.stack


def test_mpi_abort_ends_the_rank_that_calls_it_first(pair: World) -> None:
    assert goes_on(pair)
    dead, _ = run(pair, r0=["MPI_Abort"], r1=["hang"])
    assert (dead.status, dead.order) == (Status.DIED, 0)
    assert goes_on(pair)


def test_an_error_of_the_library_is_an_exception(pair: World) -> None:
    raised, _ = run(pair, r0=["invalid rank"])
    assert raised.status is Status.RAISED
    assert "MPI_ERR_RANK" in raised.error or "nvalid rank" in raised.error
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


def test_a_hang_shows_stacks(pair: World) -> None:
    assert goes_on(pair)
    hung, waiting = run(pair, SHORT, r0=["hang"])
    assert (hung.status, waiting.status) == (Status.HUNG, Status.HUNG)
    assert "in _do" in hung.stack
    assert "in run" in waiting.stack
    assert goes_on(pair)


def test_stopped_from_outside(pair: World, tmp_path: Path) -> None:
    marker = tmp_path / "begun"
    victim = pids(pair)[0]
    stopper = meanwhile(marker, lambda: os.kill(victim, signal.SIGSTOP))
    stopped, _ = run(pair, SHORT, r0=[f"touch {marker}", "hang"])
    stopper.join()
    assert stopped.status is Status.STOPPED
    assert goes_on(pair)


def test_a_world_that_does_not_open(config: WorldConfig, cluster: Cluster) -> None:
    failing = WorldConfig("open-1", 2, python=config.python, executor=config.executor, launcher=config.launcher)
    with World(failing, cluster) as world:
        waiting, failed = run(world)
        assert (failed.status, failed.error) == (Status.RAISED, "opening the world: no such backend")
        assert waiting.status in (Status.CUT_SHORT, Status.OK)


def test_an_mpiexec_that_fails(config: WorldConfig, cluster: Cluster, tmp_path: Path) -> None:
    for name, text in ((LAUNCHERS[config.launcher].program, "echo no slots >&2; exit 1"), ("python", "exit 1")):
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o700)
    failing = WorldConfig("none", 2, python=str(tmp_path / "python"), launcher=config.launcher)
    with World(failing, cluster) as world:
        for seen in run(world):
            assert seen.status is Status.LOST
            assert seen.error == "mpiexec did not start the ranks: mpiexec ended: no slots"


def test_a_killed_mpiexec_is_no_verdict_on_a_rank(pair: World, tmp_path: Path) -> None:
    assert goes_on(pair)
    marker = tmp_path / "begun"
    roots = [pid for pid in launched(pair) if "relay" not in command(pid).split()[:8]]
    killer = meanwhile(marker, lambda: [os.kill(pid, signal.SIGKILL) for pid in roots])
    seen = run(pair, SHORT, r0=[f"touch {marker}", "sleep 0.3"], r1=["sleep 0.3"])
    killer.join()
    assert not {Status.DIED, Status.RAISED} & {each.status for each in seen}
    run(pair)  # Where the case was over before, the next one finds no mpiexec.
    assert goes_on(pair)


def test_nothing_is_left_when_a_world_is_closed(config: WorldConfig, cluster: Cluster) -> None:
    before = in_shared_memory()
    with World(config, cluster) as world:
        assert goes_on(world)
        processes = [*pids(world), *launched(world)]
        (folder,) = cluster.directory.glob(f"ranks/*/{world._name}")
    wait_until_gone(processes, set(), {folder} | (in_shared_memory() - before))


def test_nothing_is_left_when_the_actor_is_killed(config: WorldConfig, cluster: Cluster) -> None:
    before = in_shared_memory()
    world = World(config, cluster)
    assert goes_on(world)
    processes = [*pids(world), *launched(world)]
    ray.kill(actor(world))
    wait_until_gone(processes, set(), in_shared_memory() - before)
    lost = run(world)
    assert {seen.status for seen in lost} == {Status.LOST}
    assert goes_on(world)
    world.close()


def test_nothing_is_left_when_the_driver_is_killed(config: WorldConfig) -> None:
    before = in_shared_memory()
    root = Path(__file__).resolve().parents[2]
    running = subprocess.Popen(
        [sys.executable, "-c", DRIVER, config.python, config.launcher],
        env=os.environ | {"PYTHONPATH": str(root)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with running:
        directory, processes = started(running)
        assert any("relay" in command(pid) for pid in processes)
        running.kill()
    wait_until_gone(processes, set(), {directory} | (in_shared_memory() - before))


def test_nothing_listens_where_others_could_reach_it(pair: World) -> None:
    assert goes_on(pair)
    own = Path("/proc/self/ns/net").stat().st_ino
    for pid in [*pids(pair), *launched(pair)]:
        if Path(f"/proc/{pid}/ns/net").stat().st_ino == own:
            inodes = sockets([pid]) & set(listening())
            assert not inodes, command(pid)
        else:
            # A network of its own, with nothing but a loopback interface.
            assert Path(f"/proc/{pid}/net/dev").read_text().count(":") == 1
