"""Programs of several calls on real ranks: what each feature of a program means, on gloo."""

from __future__ import annotations

from dataclasses import replace

import pytest

from corpus.case import Call, Case, CaseError, Data, Group, Tensor, TensorSpec, World
from corpus.meaning import check
from fuzz.runner import Runner

X = TensorSpec((5,))
OUT = replace(X, payload="poison")


def clean(runner: Runner, case: Case) -> None:
    judgement = runner.run(case).judgement
    assert (judgement.failures, judgement.lost) == ([], "")


def test_a_result_is_reduced_again(runner):
    call = Call("all_reduce", ("x",), ("x",), reduce_op="sum")
    clean(runner, Case("gloo", World(3), (Tensor("x", X),), (call, call)))


def test_results_move_on_through_other_collectives(runner):
    tensors = (Tensor("x", X), Tensor("y", replace(OUT, shape=(15,))), Tensor("z", OUT))
    program = (
        Call("all_gather_into_tensor", ("x",), ("y",)),
        Call("negate", ("y",), ("y",)),
        Call("broadcast", ("y",), ("y",), root=1),
        Call("reduce_scatter_tensor", ("y",), ("z",), reduce_op="max"),
    )
    summed = replace(program[3], reduce_op="sum")
    with pytest.raises(CaseError, match="no one legal value"):
        check(Case("gloo", World(3), tensors, (*program[:2], summed, Call("negate", ("z",), ("z",)))))
    clean(runner, Case("gloo", World(3), tensors, (program[0], program[2], summed)))


def test_local_computations(runner):
    tensors = (Tensor("x", X), Tensor("y", OUT))
    program = (
        Call("all_reduce", ("x",), ("x",), reduce_op="sum"),
        Call("copy", ("x",), ("y",)),
        Call("double", ("x",), ("x",)),
        Call("all_reduce", ("x",), ("x",), reduce_op="sum"),
        Call("negate", ("y",), ("y",)),
    )
    clean(runner, Case("gloo", World(2), tensors, program))


def test_works_are_waited_for_in_another_order(runner):
    tensors = (Tensor("x", X), Tensor("x_2", X), Tensor("x_3", X))
    reduce = Call("all_reduce", ("x",), ("x",), reduce_op="sum", async_op=True, wait=2)
    program = (
        reduce,
        replace(reduce, inputs=("x_2",), outputs=("x_2",)),
        replace(reduce, inputs=("x_3",), outputs=("x_3",), wait=None, late=1),
    )
    clean(runner, Case("gloo", World(2), tensors, program))


def test_permuted_and_twin_groups(runner):
    groups = (Group("g0", (2, 0)), Group("g1", (2, 0)), Group("g2", (1, 2)))
    tensors = (Tensor("x", X), Tensor("y", replace(OUT, shape=(10,))), Tensor("x_2", X))
    program = (
        Call("all_gather_into_tensor", ("x",), ("y",), group="g0"),
        Call("broadcast", ("x_2",), ("x_2",), group="g1", root=0),
        Call("all_reduce", ("x_2",), ("x_2",), group="g2", reduce_op="sum"),
    )
    clean(runner, Case("gloo", World(3, groups), tensors, program))


def test_data_of_another_tensor(runner):
    tensors = (
        Tensor("x", replace(X, shape=(9,))),
        Tensor("x_2", X, data=Data("x", start=2, shift=1, exponent=1)),
        Tensor("y", replace(OUT, shape=(15,))),
    )
    program = (
        Call("all_gather_into_tensor", ("x_2",), ("y",)),
        Call("all_reduce", ("x",), ("x",), reduce_op="sum"),
    )
    clean(runner, Case("gloo", World(3), tensors, program))


def test_large_results_are_predicted_on_one_period(runner):
    x = TensorSpec((40_000,))
    tensors = (Tensor("x", x), Tensor("y", replace(x, shape=(80_000,), payload="poison")))
    program = (
        Call("all_reduce", ("x",), ("x",), reduce_op="sum"),
        Call("all_gather_into_tensor", ("x",), ("y",)),
        Call("all_reduce", ("y",), ("y",), reduce_op="max"),
    )
    clean(runner, Case("gloo", World(2), tensors, program))


def test_a_consequence_is_not_told(runner):
    """The second call is given what the first one got wrong; only the first one is at fault."""
    call = Call("all_reduce", ("x",), ("x",), reduce_op="sum")
    case = Case("gloo", World(3), (Tensor("x", X),), (call, call), fault="missing-contribution")
    failures = runner.run(case).judgement.failures
    assert [(failure.call, failure.kind) for failure in failures] == [(0, "wrong result")]


def test_an_input_that_is_overwritten_later_is_looked_at_before(runner):
    tensors = (Tensor("x", X), Tensor("y0", OUT), Tensor("y1", OUT))
    program = (
        Call("all_gather", ("x",), ("y0", "y1")),
        Call("broadcast", ("x",), ("x",), root=0),
    )
    case = Case("gloo", World(2), tensors, program, fault="input-clobbered")
    failures = runner.run(case).judgement.failures
    assert [(failure.call, failure.kind) for failure in failures] == [(0, "input changed")]
