"""The order of additions that a right sum shows is named, and none where the data cannot tell."""

from functools import reduce

import pytest
import torch
from simulated import Simulation, case_of, contract

from oracles import fold
from oracles.observation import Observation, Status


def left(parts):
    return reduce(torch.add, parts)


def ring(parts, step=1):
    """Chunk j is added up from rank j on."""
    ranks = len(parts)
    chunks = [part.tensor_split(ranks) for part in parts]
    return torch.cat(
        [left([chunks[(first + step * place) % ranks][first] for place in range(ranks)]) for first in range(ranks)]
    )


def doubling(parts):
    while len(parts) > 1:
        parts = [parts[place] + parts[place + 1] for place in range(0, len(parts), 2)]
    return parts[0]


def halving(parts):
    while len(parts) > 1:
        parts = [parts[place] + parts[place + len(parts) // 2] for place in range(len(parts) // 2)]
    return parts[0]


def wide(parts):
    return left([part.double() for part in parts]).to(parts[0].dtype)


def simulated(function, *, world=4, shape=(600,), op="sum", ranks=None, name="all_reduce", **options):
    simulation = Simulation(case_of(name, shape, world=world, reduce_op=op, **options))
    for rank in range(world):
        parts = [mine["x"] for mine in simulation.inputs]
        total = (ranks or {}).get(rank, function)(parts)
        simulation.write(rank, "x", total / world if op == "avg" else total)
    return simulation


def seen(*arguments, **options):
    judgement = simulated(*arguments, **options).judge()
    assert [failure.oracle for failure in judgement.failures if failure.oracle != "agreement"] == []
    return judgement.folds


@pytest.mark.parametrize("op", ["sum", "avg"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "float64"])
@pytest.mark.parametrize("world", [3, 4, 5, 8])
@pytest.mark.parametrize(
    ("name", "function"),
    [("rank order", left), ("ring", ring), ("reverse rank order", lambda parts: left(parts[::-1]))],
)
def test_orders_of_any_number_of_ranks(name, function, world, dtype, op):
    assert seen(function, world=world, dtype=dtype, op=op) == (
        f"all_reduce {op} {dtype}, {world} ranks: {name}, native",
    )


@pytest.mark.parametrize("world", [4, 8])
@pytest.mark.parametrize(("name", "function"), [("recursive doubling", doubling), ("recursive halving", halving)])
def test_orders_of_a_power_of_two(name, function, world):
    assert seen(function, world=world) == (f"all_reduce sum float32, {world} ranks: {name}, native",)


def test_a_ring_the_other_way_round():
    assert seen(lambda parts: ring(parts, -1)) == ("all_reduce sum float32, 4 ranks: ring, native",)


def test_a_rotation_of_the_whole():
    wanted = "all_reduce sum float32, 4 ranks: rank order from rank 2 of the group on, native"
    assert seen(lambda parts: left(parts[2:] + parts[:2])) == (wanted,)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_an_accumulator_that_rounds_once(dtype):
    simulation = simulated(wide, dtype=dtype)
    judgement = simulation.judge(contract(accumulation="native or wide"))
    assert (judgement.failures, judgement.folds) == ([], (f"all_reduce sum {dtype}, 4 ranks: any order, wide",))


def test_the_runs_of_a_ring_are_its_chunks():
    simulation = simulated(ring, world=4)
    reports = fold_reports(simulation)
    assert [(entry["fold"], entry["runs"]) for entry in reports] == [("ring, native", 4)] * 4


def fold_reports(simulation):
    from oracles.observe import observe

    return [
        entry
        for rank, buffers in enumerate(simulation.buffers)
        for entry in observe(simulation.case, contract(), rank, buffers)["fold"]["folds"]
    ]


def test_an_order_that_alternates_has_no_name():
    def alternating(parts):
        return torch.where(torch.arange(600) % 2 == 0, left(parts), doubling(parts))

    assert seen(alternating) == ("all_reduce sum float32, 4 ranks: unnamed",)


def test_ranks_that_add_up_in_different_orders():
    wanted = "all_reduce sum float32, 4 ranks: rank order, native on ranks 0, 1 and 3; ring, native on rank 2"
    assert seen(left, ranks={2: ring}) == (wanted,)


def test_a_ring_over_millions_of_elements():
    assert seen(ring, world=3, shape=(1_000_000,)) == ("all_reduce sum float32, 3 ranks: ring, native",)


@pytest.mark.parametrize(
    "options",
    [
        {"payload": "exact"},
        {"payload": "index"},
        {"world": 2},
        {"shape": (4,)},
        {"world": 9},
        {"dtype": "int32"},
        {"dtype": "complex64"},
    ],
)
def test_data_that_cannot_tell(options):
    assert seen(left, **options) == ()


def test_a_wrong_result_has_no_order():
    simulation = simulated(lambda parts: left(parts[1:]))
    assert fold_reports(simulation) == []


def test_a_mean_that_is_not_the_divided_sum_has_no_order():
    judgement = simulated(left, op="avg").judge(contract(average=("sum/n", "pre/n")))
    assert judgement.folds == ()


@pytest.mark.parametrize(
    ("rows", "runs"),
    [("1111", 1), ("1100/0011", 2), ("1110/0111", 2), ("1010/0101", 4), ("1101/1101", 0)],
)
def test_the_fewest_runs(rows, runs):
    import numpy as np

    assert fold._runs(np.array([[cell == "1" for cell in row] for row in rows.split("/")])) == runs


def test_what_was_seen_is_listed_by_call():
    case = case_of("all_reduce", (6,), reduce_op="sum", world=2)
    entry = {"call": 0, "output": "x", "fold": "ring, native", "runs": 2}
    reports = [Observation(rank, Status.OK, reports={"fold": {"folds": [entry]}}) for rank in range(2)]
    assert list(fold.judge(case, reports)) == ["all_reduce sum float32, 2 ranks: ring, native"]
