"""Scripts of the libraries that have calls of their own: each shows a wrong result, and nothing of a right one."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
import ray
import torch
from repro_cases import failure, op_case
from running import run

from corpus.case import Call, Case, Layout, Tensor
from fuzz import environments
from fuzz.repro.code import ReproError
from fuzz.repro.dialects import Dialect, Names
from fuzz.repro.functional import Functional
from fuzz.repro.script import script
from fuzz.repro.threaded import Threaded

MPI = ("mpich", "openmpi")
MPI_OPS = ("reduce", "all_gather_into_tensor", "gather", "reduce_scatter", "scatter", "all_to_all_single", "send_recv")


def written(case: Case, kind: str = "wrong result", written_by: Dialect | None = None) -> str:
    return script(case, [failure(kind, op=case.program[0].op)], title=kind, written_by=written_by)


def apart(case: Case, payload: str | None) -> Case:
    """The case with an output of its own."""
    x = case.tensors[0]
    y = Tensor("y", replace(case.tensors[-1].spec, payload=payload))
    return replace(case, tensors=(x, y), program=(replace(case.program[0], outputs=("y",)),))


class Idle(Threaded):
    """Threads that call nothing."""

    def call(self, case: Case, call: Call, names: Names) -> list[str]:
        return []


@pytest.mark.parametrize(("dialect", "status"), [(Threaded(), 0), (Idle(), 1)])
def test_threads(tmp_path: Path, dialect: Dialect, status: int) -> None:
    case = op_case("all_reduce", (3,), world=3, group=(2, 0), backend="threaded")
    done = run(tmp_path, written(case, written_by=dialect))
    assert done.returncode == status, done.stdout + done.stderr
    assert done.stdout.count("x is wrong\n  observed [") == 2 * status


@pytest.fixture
def inductor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The compiler keeps a folder where temporary files are, unless it is told another."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "inductor"))


@pytest.mark.parametrize("op", ["all_reduce", "broadcast", "all_gather_into_tensor", "reduce_scatter_tensor"])
@pytest.mark.usefixtures("inductor")
def test_functional_collectives(tmp_path: Path, op: str) -> None:
    case = apart(op_case(op, (2, 3), world=3, group=(2, 0), backend="functional"), None)
    done = run(tmp_path, written(case))
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("y is right") == 2


@pytest.mark.skipif(not torch.__version__.startswith("2.13."), reason="seen on torch 2.13")
@pytest.mark.usefixtures("inductor")
def test_a_compiled_functional_collective(tmp_path: Path) -> None:
    case = apart(op_case("broadcast", (3,), "bool", backend="functional"), None)
    # With an option, so that it may leave files: the compiler does, where temporary files are.
    done = run(tmp_path, written(replace(case, mode="compiled"), "wrong dtype"), "-B")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "y is a torch.int64 of shape (3,), expected bool of (3,)" in done.stdout


def test_a_compiled_program_has_all_ranks_in_every_call() -> None:
    case = apart(op_case("broadcast", (3,), world=3, group=(2, 0), backend="functional"), None)
    several = replace(case, mode="compiled", program=(*case.program, replace(case.program[0], group="world")))
    with pytest.raises(ReproError, match="some ranks"):
        Functional().program(several, ["if rank == 0:", "    y = x"], ["x"])


@pytest.mark.skipif(not ray.__version__.startswith("2.60."), reason="seen on ray 2.60")
@pytest.mark.parametrize(("kind", "status"), [("wrong result", 0), ("input changed", 1)])
def test_ray(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, status: int) -> None:
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    with tempfile.TemporaryDirectory() as short:  # a socket's name may not be long
        monkeypatch.setenv("RAY_TMPDIR", short)
        done = run(tmp_path, written(op_case("reduce_scatter", (3,), backend="ray"), kind))
    assert done.returncode == status, done.stdout + done.stderr
    assert done.stdout.count("is wrong\n  observed [") == 4 * status


@pytest.fixture(params=MPI)
def library(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """A library with an environment; its ranks meet in shared memory only."""
    name: str = request.param
    try:
        environments.find(name)
    except environments.TargetError as error:
        pytest.skip(str(error))
    for variable, value in {
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "OMPI_MCA_pml": "ob1",
        "OMPI_MCA_btl": "self,sm",
        "UCX_TLS": "self,sm",
    }.items():
        monkeypatch.setenv(variable, value)
    return name


def test_mpi_shows_a_wrong_sum(tmp_path: Path, library: str) -> None:
    case = apart(op_case("all_reduce", (8,), "uint16", payload="wide", backend=library), "poison")
    done = run(tmp_path, written(case), python=environments.find(library).python)
    assert done.returncode == (1 if library == "openmpi" else 0), done.stdout + done.stderr
    assert done.stdout.count("y is wrong\n  observed [") == (2 if library == "openmpi" else 0)


@pytest.mark.parametrize("op", MPI_OPS)
def test_mpi_is_right(tmp_path: Path, library: str, op: str) -> None:
    case = op_case(op, (2, 3), world=3, group=(2, 0), backend=library, layout=Layout(strides=(8, 2)))
    done = run(
        tmp_path, written(apart(case, "poison") if op == "reduce" else case), python=environments.find(library).python
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "is right" in done.stdout


def test_mpi_refuses_what_it_does_not_write(library: str) -> None:
    with pytest.raises(ReproError, match="in_place"):
        written(replace(op_case("all_reduce", (3,), backend=library), flags=(("in_place", "1"),)))
