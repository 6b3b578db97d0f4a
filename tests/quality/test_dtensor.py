"""DTensor's changes of placement mean what their collectives mean, on every mesh and way; and what is wrong."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest
import torch

from corpus.case import WORLD, Call, Case, Group, Tensor, TensorSpec, World
from fuzz.backends import load
from fuzz.runner import Runner

released = pytest.mark.skipif(
    not torch.__version__.startswith("2.13."), reason=f"written for torch 2.13, this is {torch.__version__}"
)

CONTRACT = load("dtensor").contract({})
SMALL, LARGE = (3, 2), (12, 2)
SHAPES = {
    "all_reduce": (SMALL, SMALL),
    "all_gather_into_tensor": (SMALL, LARGE),
    "reduce_scatter_tensor": (LARGE, SMALL),
    "all_to_all_single": (LARGE, LARGE),
}
"""Shapes of input and output on four ranks: three rows and two columns are uneven there, and leave shards empty."""
FLAGS = [
    tuple((name, value) for name, value in (("mesh", mesh), ("through", through)) if value is not None)
    for mesh, through in product((None, "1d", "2d"), (None, "Shard(0)", "Shard(-1)"))
]


def one_call(
    op: str, dtype: str, reduce_op: str | None, *, ranks: tuple[int, ...] = (0, 1, 2, 3), async_op: bool = False
) -> Case:
    """A call on four ranks of a world of five, or on all of four."""
    given, taken = SHAPES[op]
    world = World(4) if ranks == (0, 1, 2, 3) else World(5, (Group("g0", ranks),))
    return Case(
        "dtensor",
        world,
        (Tensor("x", TensorSpec(given, dtype)), Tensor("out", TensorSpec(taken, dtype, payload=None))),
        (Call(op, ("x",), ("out",), world.groups[0].name if world.groups else WORLD, reduce_op, async_op=async_op),),
    )


def plain(op: str, **options: object) -> Case:
    """A call of float32, and of sums."""
    return one_call(op, "float32", "sum" if CONTRACT.ops[op].reduce_ops else None, **options)  # type: ignore[arg-type]


def clean(runner: Runner, case: Case) -> None:
    judgement = runner.run(case).judgement
    assert (judgement.failures, judgement.lost, judgement.refused) == ([], "", False), case


@pytest.mark.parametrize("op", CONTRACT.ops)
def test_what_is_declared_works(runner: Runner, op: str) -> None:
    promise = CONTRACT.ops[op]
    pairs: list[tuple[str | None, str]] = [
        (name, dtype) for name, dtypes in promise.reduce_ops.items() for dtype in dtypes
    ]
    for reduce_op, dtype in pairs or [(None, dtype) for dtype in promise.dtypes]:
        clean(runner, one_call(op, dtype, reduce_op))


@pytest.mark.parametrize("op", CONTRACT.ops)
def test_every_mesh_and_way_means_the_same(runner: Runner, op: str) -> None:
    for flags in FLAGS:
        clean(runner, replace(plain(op), flags=flags))


@pytest.mark.parametrize("op", CONTRACT.ops)
def test_groups_of_some_ranks(runner: Runner, op: str) -> None:
    for flags in FLAGS:
        clean(runner, replace(plain(op, ranks=(0, 1, 3, 4)), flags=flags))


@pytest.mark.parametrize("op", CONTRACT.ops)
def test_asynchronous_calls(runner: Runner, op: str) -> None:
    for flags in FLAGS:
        clean(runner, replace(plain(op, async_op=True), flags=flags))


def test_one_mesh_dimension_of_one_rank(runner: Runner) -> None:
    """Three ranks are one row of three."""
    call = Call("all_reduce", ("x",), ("out",), reduce_op="sum")
    tensors = (Tensor("x", TensorSpec((5,))), Tensor("out", TensorSpec((5,), payload=None)))
    clean(runner, Case("dtensor", World(3), tensors, (call,), flags=(("mesh", "2d"),)))


PERMUTED = (3, 0, 4, 1)


@pytest.mark.parametrize("op", CONTRACT.ops)
def test_a_mesh_of_a_process_group_keeps_its_order(runner: Runner, op: str) -> None:
    clean(runner, plain(op, ranks=PERMUTED))


@released
@pytest.mark.parametrize("mesh", ["1d", "2d"])
@pytest.mark.parametrize("op", ["all_gather_into_tensor", "reduce_scatter_tensor", "all_to_all_single"])
def test_a_mesh_of_ranks_loses_their_order(runner: Runner, op: str, mesh: str) -> None:
    """DeviceMesh makes process groups of sorted ranks, or takes that of the world (pytorch#193224)."""
    failures = runner.run(replace(plain(op, ranks=PERMUTED), flags=(("mesh", mesh),))).judgement.failures
    assert {(failure.oracle, failure.kind) for failure in failures} == {("numeric", "wrong result")}
