"""ray.util.collective does what its documentation says, on plain input, but for what it gets wrong."""

from __future__ import annotations

import pytest
import ray

from corpus.case import Call, Case, Group, Tensor, TensorSpec, World
from fuzz.backends import load
from fuzz.runner import Runner

CONTRACT = load("ray").contract({})
EACH = TensorSpec((2, 3))
SHAPES = {
    "all_gather": ((EACH,), (EACH, EACH)),
    "reduce_scatter": ((EACH, EACH), (EACH,)),
    "send_recv": ((EACH,), (EACH,)),
    "barrier": ((), ()),
}
"""Inputs and outputs on two ranks of a collective that is not in place."""


def conformance(op: str) -> list[Case]:
    """One call of a collective for every reduce op and dtype that the contract has."""
    promise = CONTRACT.ops[op]
    given, taken = SHAPES.get(op, ((EACH,), ()))
    inputs = tuple(f"x{place}" for place in range(len(given)))
    outputs = inputs if promise.in_place else tuple(f"y{place}" for place in range(len(taken)))
    root = 1 if op in ("broadcast", "reduce", "send_recv") else None
    peer = 0 if op == "send_recv" else None
    pairs: list[tuple[str | None, str]] = [
        (name, dtype) for name, dtypes in promise.reduce_ops.items() for dtype in dtypes
    ]
    return [
        Case(
            "ray",
            World(2),
            (
                *(Tensor(name, TensorSpec(spec.shape, dtype)) for name, spec in zip(inputs, given, strict=True)),
                *(
                    Tensor(name, TensorSpec(spec.shape, dtype, payload="poison"))
                    for name, spec in zip(outputs, taken, strict=False)
                ),
            ),
            (Call(op, inputs, outputs, reduce_op=reduce_op, root=root, peer=peer),),
        )
        for reduce_op, dtype in pairs or [(None, dtype) for dtype in promise.dtypes or ("float32",)]
    ]


released = pytest.mark.skipif(
    not ray.__version__.startswith("2.60."), reason=f"written for ray 2.60, this is {ray.__version__}"
)


@pytest.mark.parametrize("op", [op for op in CONTRACT.ops if op != "reduce_scatter"])
def test_what_is_declared_works(runner: Runner, op: str) -> None:
    for case in conformance(op):
        judgement = runner.run(case).judgement
        assert (judgement.failures, judgement.lost, judgement.refused) == ([], "", False), case


def failures(runner: Runner, case: Case) -> list[tuple[str, str]]:
    return [(failure.oracle, failure.kind) for failure in runner.run(case).judgement.failures]


@released
def test_a_reduce_scatter_is_right_but_overwrites_its_list(runner: Runner) -> None:
    """It is an all_reduce of each tensor of the caller's list, in place."""
    for case in conformance("reduce_scatter"):
        assert failures(runner, case) == [("preservation", "input changed")], case


@released
def test_a_group_in_another_order_has_the_wrong_ranks(runner: Runner) -> None:
    """A group is made of the ranks 0, 1, ... of torch.distributed, whatever their ranks in the group are to be."""
    call = Call("broadcast", ("x",), ("x",), group="g0", root=0)
    case = Case("ray", World(2, (Group("g0", (1, 0)),)), (Tensor("x", EACH),), (call,))
    assert failures(runner, case) == [("numeric", "wrong result")]


@released
def test_a_group_of_some_ranks_hangs(runner: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is made of the first ranks of all, which are not those that make it."""
    monkeypatch.setattr(runner, "deadline", 3.0)
    call = Call("broadcast", ("x",), ("x",), group="g0", root=0)
    case = Case("ray", World(3, (Group("g0", (1, 2)),)), (Tensor("x", EACH),), (call,))
    assert failures(runner, case) == [("liveness", "hang")]
