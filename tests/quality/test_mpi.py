"""MPI libraries run the programs that the standard allows, each from an environment of its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from corpus.case import Call, Case, Group, Layout, Tensor, TensorSpec, World
from fuzz import environments
from fuzz.backends import load
from fuzz.backends.mpi_contract import contract
from fuzz.ranks.cluster import Cluster
from fuzz.runner import Runner
from tests.quality.helpers import campaign

LIBRARIES = ("mpich", "openmpi")
COLUMN = Layout((2,), before=1, after=2)
"""Every other element, between others that are not to change."""


@pytest.fixture(scope="module", params=LIBRARIES)
def library(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    try:
        environments.find(name)
    except environments.TargetError as error:
        pytest.skip(str(error))
    return name


@pytest.fixture(scope="module")
def mpi(library: str, cluster: Cluster) -> Iterator[Runner]:
    with Runner(cluster=cluster, pythons={library: environments.find(library).python}) as made:
        yield made


def case(library: str, call: Call, *tensors: Tensor, groups: tuple[Group, ...] = (), **flags: str) -> Case:
    return Case(library, World(3, groups), tensors, (call,), flags=tuple(sorted(flags.items())))


def given(name: str, size: int, layout: Layout | None = None, dtype: str = "float32") -> Tensor:
    return Tensor(name, TensorSpec((size,), dtype, layout or Layout()))


def taken(name: str, size: int, layout: Layout | None = None, dtype: str = "float32") -> Tensor:
    return Tensor(name, TensorSpec((size,), dtype, layout or Layout(), payload="poison"))


SCALAR = {"openmpi": (("OMPI_MCA_op", "^avx"),)}
"""Without its vector code, Open MPI adds small integers as everybody does."""


@pytest.mark.parametrize("op", [op for op in contract("mpich").ops if op != "barrier"])
def test_every_collective_is_right(library: str, mpi: Runner, op: str) -> None:
    ran = campaign(
        mpi,
        backend=library,
        worlds=(2, 3),
        ops=(op,),
        layouts="contiguous",
        flags=SCALAR.get(library, ()),
        examples=12,
        memory=1 << 22,
    )
    assert ran.findings == []
    assert ran.finished.cases >= 12


def test_a_sum_of_small_integers_depends_on_their_number(library: str, mpi: Runner) -> None:
    # open-mpi/ompi#8045, closed as "won't fix": the vector code saturates, the code for what is left over wraps.
    call = Call("all_reduce", ("x",), ("y",), reduce_op="sum")
    x = Tensor("x", TensorSpec((8,), "uint16", payload="wide"))
    y = Tensor("y", TensorSpec((8,), "uint16", payload="poison"))
    failures = mpi.run(case(library, call, x, y)).judgement.failures
    assert [failure.kind for failure in failures] == (["wrong result"] if library == "openmpi" else [])


@pytest.mark.parametrize("flag", ["in_place", "counts"])
@pytest.mark.parametrize(
    ("op", "inputs", "outputs"),
    [("all_gather_into_tensor", 4, 12), ("reduce_scatter_tensor", 12, 4), ("all_to_all_single", 6, 6)],
)
def test_variants_go_through_their_own_function(
    library: str, mpi: Runner, flag: str, op: str, inputs: int, outputs: int
) -> None:
    call = Call(op, ("x",), ("y",), reduce_op="sum" if op.startswith("reduce") else None)
    program = case(library, call, given("x", inputs), taken("y", outputs), **{flag: "1"})
    outcome = mpi.check(program)
    route = outcome.observations[0].routes[0].partition(":")[2]
    plain = {"all_gather_into_tensor": "Allgather", "all_to_all_single": "Alltoall"}.get(op, "Reduce_scatter_block")
    by_counts = {"Allgather": "Allgatherv", "Alltoall": "Alltoallv", "Reduce_scatter_block": "Reduce_scatter"}
    assert route == (by_counts[plain] if flag == "counts" else plain)


@pytest.mark.parametrize("dtype", ["float32", "complex128", "uint16", "float16", "bool"])
def test_a_view_travels_by_a_derived_datatype(library: str, mpi: Runner, dtype: str) -> None:
    call = Call("all_gather_into_tensor", ("x",), ("y",))
    program = case(library, call, given("x", 4, COLUMN, dtype), taken("y", 12, COLUMN, dtype))
    assert mpi.check(program).judgement.failures == []


@pytest.mark.parametrize("split", [None, "1"])
def test_a_permuted_group_has_its_ranks_in_its_order(library: str, mpi: Runner, split: str | None) -> None:
    call = Call("all_gather_into_tensor", ("x",), ("y",), group="g")
    flags = {} if split is None else {"split": split}
    tensors = (given("x", 4), taken("y", 8))
    program = case(library, call, *tensors, groups=(Group("g", (2, 0)),), **flags)
    assert mpi.check(program).judgement.failures == []


@pytest.mark.parametrize(("rows", "lost"), [(5461, 0), (5462, 2)])
def test_a_copy_to_oneself_is_whole(library: str, mpi: Runner, rows: int, lost: int) -> None:
    # Open MPI copies in pieces of 64 KiB, and loses the rest of the last block of a datatype that one ends in.
    strided = TensorSpec((rows, 3), layout=Layout((5, 1)))
    call = Call("all_gather_into_tensor", ("x",), ("y",))
    tensors = (Tensor("x", strided), Tensor("y", TensorSpec((3 * rows, 3), payload="poison")))
    failures = mpi.run(case(library, call, *tensors)).judgement.failures
    wrong = lost if library == "openmpi" else 0
    assert [failure.kind for failure in failures] == (["wrong result"] if wrong else [])
    # Whoever gets a rank's part gets it from there.
    assert all(f" {3 * wrong} of {9 * rows:,} elements" in failure.message for failure in failures)


def test_an_asynchronous_call_is_the_nonblocking_function(library: str, mpi: Runner) -> None:
    call = Call("all_reduce", ("x",), ("y",), reduce_op="max", async_op=True)
    outcome = mpi.check(case(library, call, given("x", 5), taken("y", 5)))
    assert outcome.observations[0].routes == (f"{library}:Iallreduce",)


def test_versions_name_the_library(library: str, mpi: Runner) -> None:
    call = Call("all_reduce", ("x",), ("y",), reduce_op="sum")
    outcome = mpi.check(case(library, call, given("x", 1), taken("y", 1)))
    said = dict(outcome.observations[0].versions)[library]
    assert said.startswith({"mpich": "MPICH", "openmpi": "Open MPI"}[library])


@pytest.mark.parametrize("name", LIBRARIES)
def test_what_is_missing_is_named(name: str) -> None:
    backend = load(name)
    backend.python = "/nowhere/bin/python"
    assert f"no /nowhere/bin/{'mpiexec'}" in str(backend.unavailable())
