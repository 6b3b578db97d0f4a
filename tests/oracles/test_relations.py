"""Relations between results: what differs is told as a divergence, unless one side is simply wrong."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch

from corpus.case import Call, Case, Data, Relation, Tensor, TensorSpec, World
from corpus.meaning import writes
from oracles import relations
from oracles.buffers import torch_dtype
from oracles.contents import Contents
from oracles.failure import Verdict
from oracles.observation import Observation, Status
from strategies.cases import cases
from strategies.relations import RELATIONS
from tests.oracles.simulated import Simulation, contract
from tests.strategies.helpers import find_any, gloo_space

OPS = ("all_reduce", "all_gather_into_tensor", "all_gather", "reduce_scatter_tensor", "gather")


@cache
def drawn(name: str) -> Case:
    """A case with this relation."""
    space = replace(gloo_space, ops=OPS, dtypes=("float32", "int32"), memory=1 << 20)
    return find_any(
        cases(space),
        lambda case: any(
            one.name == name and min(case.tensor(left).spec.numel for left in one.left) > 0 for one in case.relations
        ),
        examples=3000,
    )


def ran(case: Case) -> Simulation:
    """Every rank's buffers as the predictions have them after the program."""
    simulation = Simulation(case)
    contents = Contents(case, contract())
    for rank in range(case.world.size):
        for name in {name for call in case.program for name in writes(case, call, rank)}:
            bits = contents.before(len(case.program), name, rank).bits()
            dtype = torch_dtype(case.tensor(name).on(rank).dtype)
            simulation.write(rank, name, torch.from_numpy(np.ascontiguousarray(bits)).view(dtype).reshape(-1))
    return simulation


def told(simulation: Simulation) -> list[str]:
    """What the relations alone tell."""
    case = simulation.case
    contents = Contents(case, contract())
    seen = [
        Observation(rank, Status.OK, reports={"relations": relations.observe(contents, rank, buffers)})
        for rank, buffers in enumerate(simulation.buffers)
    ]
    return [failure.kind for failure in relations.judge(case, contract(), seen)]


@pytest.mark.parametrize("name", RELATIONS)
def test_a_relation_that_holds(name: str) -> None:
    simulation = ran(drawn(name))
    assert told(simulation) == []
    assert simulation.symptoms() == []


@pytest.mark.parametrize("name", RELATIONS)
def test_a_relation_that_does_not_hold(name: str) -> None:
    case = drawn(name)
    simulation = ran(case)
    (relation,) = case.relations
    rank = next(
        rank
        for rank in range(case.world.size)
        if all(
            any(name in writes(case, call, rank) for call in case.program) for name in relation.left + relation.right
        )
    )
    view = simulation.buffers[rank][relation.left[0]].view
    assert view is not None
    with torch.no_grad():
        view.copy_(view + 1)
    assert told(simulation) == [f"{name} differs"]


def pair(payload: str, exponent: int = 0, reduce_op: str = "max", dtype: str = "float32") -> Case:
    x = TensorSpec((40,), dtype, payload=payload)
    call = Call("all_reduce", ("x",), ("x",), reduce_op=reduce_op)
    return Case(
        "simulated",
        World(2),
        (Tensor("x", x), Tensor("x_2", x, data=Data("x", shift=0 if exponent else 1, exponent=exponent))),
        (call, replace(call, inputs=("x_2",), outputs=("x_2",))),
        relations=(Relation("permutation", ("x_2",), ("x",), exponent),),
    )


def both(simulation: Simulation, x: torch.Tensor, x_2: torch.Tensor) -> Simulation:
    for rank in range(2):
        simulation.write(rank, "x", x)
        simulation.write(rank, "x_2", x_2)
    return simulation


def test_a_nan_that_wins_by_position_is_a_divergence() -> None:
    case = pair("special")
    simulation = Simulation(case)
    first, second = (simulation.inputs[rank]["x"] for rank in range(2))
    kept = torch.where(first >= second, first, second)
    turned = torch.where(second >= first, second, first)
    (failure,) = both(simulation, kept, turned).judge().failures
    assert (failure.kind, failure.verdict, failure.bug) == ("permutation differs", Verdict.DIVERGENCE, False)
    assert failure.ranks == (0, 1)
    assert "nan" in failure.observed + failure.legal


def test_nan_is_nan_whatever_its_payload() -> None:
    simulation = Simulation(pair("special"))
    first, second = (simulation.inputs[rank]["x"] for rank in range(2))
    largest = torch.maximum(first, second)
    words = largest.clone().view(torch.int32)
    other = torch.where(largest.isnan(), words ^ 1, words).view(torch.float32)
    assert told(both(simulation, largest, other)) == []


def test_one_wrong_side_is_the_numeric_oracles() -> None:
    simulation = Simulation(pair("index"))
    first, second = (simulation.inputs[rank]["x"] for rank in range(2))
    largest = torch.maximum(first, second)
    kinds = [(one.oracle, one.kind) for one in both(simulation, largest, largest + 1).judge().failures]
    assert kinds == [("numeric", "wrong result")]


def test_scaling_passes_over_what_is_not_normal() -> None:
    case = pair("wide", exponent=1, reduce_op="sum", dtype="float16")
    simulation = Simulation(case)
    values = torch.arange(40, dtype=torch.float16)
    tiny = torch.full((40,), 2.0**-24, dtype=torch.float16)
    assert told(both(simulation, values, values * 2)) == []
    assert told(both(simulation, tiny, tiny)) == []
    assert told(both(simulation, values, values * 2 + 1)) == ["permutation differs"]
