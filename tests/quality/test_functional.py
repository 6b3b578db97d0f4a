"""The functional collectives do what their contract says, on plain input, call by call and compiled; and what is known
to be wrong with them."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from corpus.case import Call, Case, Tensor, TensorSpec, World
from fuzz.backends import load
from fuzz.runner import NotRun, Runner

released = pytest.mark.skipif(
    not torch.__version__.startswith("2.13."), reason=f"written for torch 2.13, this is {torch.__version__}"
)

CONTRACT = load("functional").contract({})
SHAPES = {
    "all_gather_into_tensor": ((3, 2), (6, 2)),
    "reduce_scatter_tensor": ((6, 2), (3, 2)),
}
"""Shapes of input and output on two ranks, where they differ."""


def conformance(op: str, mode: str) -> list[Case]:
    """One call of a collective for every reduce op and dtype that the contract takes."""
    promise = CONTRACT.ops[op]
    given, taken = SHAPES.get(op, ((4, 3), (4, 3)))
    root = 1 if op == "broadcast" else None
    pairs: list[tuple[str | None, str]] = [
        (name, dtype) for name, dtypes in promise.reduce_ops.items() for dtype in dtypes
    ]
    return [
        Case(
            "functional",
            World(2),
            (Tensor("x", TensorSpec(given, dtype)), Tensor("out", TensorSpec(taken, dtype, payload=None))),
            (Call(op, ("x",), ("out",), reduce_op=reduce_op, root=root),),
            mode=mode,
        )
        for reduce_op, dtype in pairs or [(None, dtype) for dtype in promise.dtypes]
    ]


def clean(runner: Runner, case: Case) -> None:
    judgement = runner.run(case).judgement
    assert (judgement.failures, judgement.lost, judgement.refused) == ([], "", False), case


@pytest.mark.parametrize("op", CONTRACT.ops)
def test_what_is_declared_works(runner: Runner, op: str) -> None:
    for case in conformance(op, "eager"):
        clean(runner, case)


X = TensorSpec((4,))
OUT = replace(X, payload=None)
PROGRAM = Case(
    "functional",
    World(2),
    (
        Tensor("x", X),
        Tensor("y", replace(X, payload="poison")),
        Tensor("out", OUT),
        Tensor("out_2", OUT),
        Tensor("out_3", OUT),
    ),
    (
        Call("double", ("x",), ("y",)),
        Call("all_reduce", ("y",), ("out",), reduce_op="sum"),
        Call("all_reduce", ("out",), ("out_2",), reduce_op="sum"),
        Call("broadcast", ("y",), ("out_3",), root=1),
    ),
    mode="compiled",
)
"""What a compiled all_reduce was given is read again: by the caller (x, y), and by later calls (y, out). In
pytorch#108811 the compiler had given its memory away.
"""


def test_inputs_are_read_again_after_a_compiled_call(runner: Runner) -> None:
    clean(runner, PROGRAM)


def test_one_compiled_program_serves_every_size(runner: Runner) -> None:
    call = Call("all_reduce", ("x",), ("out",), reduce_op="max")
    for shape in ((2, 3), (5, 7), (1, 1), (0, 4)):
        spec = TensorSpec(shape)
        tensors = (Tensor("x", spec), Tensor("out", replace(spec, payload=None)))
        clean(runner, Case("functional", World(2), tensors, (call,), mode="compiled"))


@released
@pytest.mark.parametrize("op", ["broadcast", "all_gather_into_tensor", "reduce_scatter_tensor"])
def test_compiled_bool_becomes_int64(runner: Runner, op: str) -> None:
    """Inductor promotes a bool tensor with the integer that these calls have among their arguments."""
    case = next(case for case in conformance(op, "compiled") if case.tensor("x").spec.dtype == "bool")
    failures = runner.run(case).judgement.failures
    assert [(failure.oracle, failure.kind) for failure in failures] == [("numeric", "wrong dtype")]
    assert "int64 was returned, not bool" in str(failures[0])


def test_a_program_in_one_piece_overwrites_nothing(runner: Runner) -> None:
    again = replace(PROGRAM, program=(*PROGRAM.program, Call("negate", ("y",), ("y",))))
    with pytest.raises(NotRun, match="compiled"):
        runner.run(again)


def test_a_backend_without_compiled_programs_says_so(runner: Runner) -> None:
    call = Call("all_reduce", ("x",), ("x",), reduce_op="sum")
    with pytest.raises(NotRun, match="gloo runs eager programs"):
        runner.run(Case("gloo", World(2), (Tensor("x", X),), (call,), mode="compiled"))
