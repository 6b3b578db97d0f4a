"""Torch's threaded process group does what its contract has, on plain input; and what becomes of its one process."""

from __future__ import annotations

import pytest

from corpus.case import Call, Case, Group, Tensor, TensorSpec, World
from fuzz.backends import load
from fuzz.runner import Runner

CONTRACT = load("threaded").contract({})
EACH = TensorSpec((2, 3))
BOTH = TensorSpec((4, 3))
SHAPES = {
    "all_gather_into_tensor": ((EACH,), (BOTH,)),
    "all_gather": ((EACH,), (EACH, EACH)),
    "reduce_scatter_tensor": ((BOTH,), (EACH,)),
    "reduce_scatter": ((EACH, EACH), (EACH,)),
    "gather": ((EACH,), (EACH, EACH)),
    "scatter": ((EACH, EACH), (EACH,)),
    "all_to_all_single": ((BOTH,), (BOTH,)),
    "all_to_all": ((EACH, EACH), (EACH, EACH)),
    "barrier": ((), ()),
}
"""Inputs and outputs on two ranks of a collective that is not in place."""


def conformance(op: str) -> list[Case]:
    """One call of a collective for every reduce op and dtype that the contract has."""
    promise = CONTRACT.ops[op]
    given, taken = SHAPES.get(op, ((EACH,), ()))
    inputs = tuple(f"x{place}" for place in range(len(given)))
    outputs = inputs if promise.in_place else tuple(f"y{place}" for place in range(len(taken)))
    root = 1 if op in ("broadcast", "gather", "scatter") else None
    pairs: list[tuple[str | None, str]] = [
        (name, dtype) for name, dtypes in promise.reduce_ops.items() for dtype in dtypes
    ]
    return [
        Case(
            "threaded",
            World(2),
            (
                *(Tensor(name, TensorSpec(spec.shape, dtype)) for name, spec in zip(inputs, given, strict=True)),
                *(
                    Tensor(name, TensorSpec(spec.shape, dtype, payload="poison"))
                    for name, spec in zip(outputs, taken, strict=False)
                ),
            ),
            (Call(op, inputs, outputs, reduce_op=reduce_op, root=root),),
        )
        for reduce_op, dtype in pairs or [(None, dtype) for dtype in promise.dtypes or ("float32",)]
    ]


@pytest.mark.parametrize("op", CONTRACT.ops)
def test_what_is_declared_works(runner: Runner, op: str) -> None:
    for case in conformance(op):
        judgement = runner.run(case).judgement
        assert (judgement.failures, judgement.lost, judgement.refused) == ([], "", False), case


def test_groups_of_some_ranks_in_another_order(runner: Runner) -> None:
    groups = (Group("g0", (2, 0)), Group("g1", (1, 2)))
    tensors = (Tensor("x", EACH), Tensor("y", TensorSpec((4, 3), payload="poison")))
    program = (
        Call("all_gather_into_tensor", ("x",), ("y",), group="g0"),
        Call("all_reduce", ("x",), ("x",), group="g1", reduce_op="max"),
    )
    assert runner.run(Case("threaded", World(3, groups), tensors, program)).judgement.failures == []
