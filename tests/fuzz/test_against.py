"""A second backend on the same program: translations, the odd one out, and what is only different."""

from __future__ import annotations

from dataclasses import replace

import pytest

from corpus.case import Call, Case, Data, Group, Relation, Tensor, TensorSpec, World
from corpus.contract import Contract, OpContract, Promise
from corpus.describe import describe
from corpus.meaning import check
from fuzz.against import compare, translate
from fuzz.backends import load
from fuzz.campaign import Budget, Campaign
from fuzz.runner import Outcome
from fuzz.session import Session, space
from oracles.failure import Verdict
from oracles.judge import Judgement
from oracles.observation import Observation, Status
from tests.fuzz.scripted import all_reduce, scripted, wrong
from tests.quality.helpers import Memory, Ran

SUM = Call("all_reduce", ("x",), ("x",), reduce_op="sum")
X = Tensor("x", TensorSpec((5,)))
Y = Tensor("y", TensorSpec((5,), payload=None))
OUT = Call("all_reduce", ("x",), ("y",), reduce_op="sum")


def words(case, backend):
    translation = translate(case, load(backend))
    assert translation is not None
    check(translation.case)
    return describe(translation.case)[1:]


def test_in_place_becomes_returned():
    assert words(Case("gloo", World(2), (X,), (SUM,)), "vllm-model") == [
        "x: float32[5], index data",
        "x_out1: float32[5], returned by the call",
        "all_reduce(x, out=x_out1, reduce_op=sum)",
    ]


def test_later_calls_read_what_was_returned():
    case = Case("gloo", World(2), (X,), (SUM, SUM))
    assert words(case, "vllm-model")[-2:] == [
        "all_reduce(x, out=x_out1, reduce_op=sum)",
        "all_reduce(x_out1, out=x_out2, reduce_op=sum)",
    ]


def test_returned_becomes_in_place():
    assert words(Case("vllm-model", World(2), (X, Y), (OUT,)), "gloo") == [
        "x: float32[5], index data",
        "all_reduce(x, reduce_op=sum)",
    ]


def test_an_input_that_is_needed_later_is_copied_first():
    second = replace(OUT, outputs=("z",))
    case = Case("vllm-model", World(2), (X, Y, replace(Y, name="z")), (OUT, second))
    assert words(case, "gloo")[-3:] == [
        "copy(x, out=y)",
        "all_reduce(y, reduce_op=sum)",
        "all_reduce(x, reduce_op=sum)",
    ]
    translation = translate(case, load("gloo"))
    assert translation.calls == (1, 2)
    assert not translation.same_tables


def test_waits_move_with_their_calls():
    tensors = (X, replace(X, name="x_2"))
    first = replace(SUM, async_op=True, wait=1)
    case = Case("gloo", World(2), tensors, (first, replace(SUM, inputs=("x_2",), outputs=("x_2",))))
    # The second backend has no asynchronous calls.
    assert all(not call.async_op for call in translate(case, load("vllm-model")).case.program)


def test_relations_follow_the_tensors():
    case = Case(
        "gloo",
        World(2),
        (X, replace(X, name="x_2", data=Data("x"))),
        (SUM, replace(SUM, inputs=("x_2",), outputs=("x_2",))),
    )
    case = replace(case, relations=(Relation("repeat", ("x",), ("x_2",)),))
    (relation,) = translate(case, load("vllm-model")).case.relations
    assert (relation.left, relation.right) == (("x_out1",), ("x_2_out1",))


def test_a_fault_is_left_out():
    assert translate(replace(all_reduce(), fault="tail-not-written"), load("vllm-model")).case.fault is None


@pytest.mark.parametrize(
    "case",
    [
        Case("gloo", World(2), (X,), (Call("broadcast", ("x",), ("x",), root=0),)),
        Case("gloo", World(2), (X,), (replace(SUM, reduce_op="max"),)),
        Case("gloo", World(2), (replace(X, spec=TensorSpec((5,), "complex64")),), (SUM,)),
        # Rank 2 would go on with the old tensor, the others with a new one.
        Case("gloo", World(3, (Group("g", (0, 1)),)), (X,), (replace(SUM, group="g"), SUM)),
    ],
    ids=["op", "reduce op", "dtype", "part of the ranks"],
)
def test_what_a_backend_does_not_have_is_not_comparable(case):
    check(case)
    assert translate(case, load("vllm-model")) is None


CONTRACT = Contract("a", {"all_reduce": OpContract("", in_place=True)}, Promise("right", ""))


def outcome(case, *deviations, output="x", judged=None):
    seen = tuple(
        Observation(
            rank,
            Status.OK,
            reports={
                "numeric": {"outputs": [{"call": 0, "output": output, "deviations": text, "judged": judged or {}}]}
            },
        )
        for rank, text in enumerate(deviations)
    )
    return Outcome(case, seen, Judgement(), 0.0)


def compared(first, second, judged=None, other=CONTRACT):
    case = all_reduce()
    translation = translate(case, load("vllm-model"))
    theirs = outcome(translation.case, *second, output="x_out1", judged=judged)
    return compare(outcome(case, *first), theirs, translation, CONTRACT, other)


def test_the_same_bits_are_no_difference():
    assert compared(("a", ""), ("a", "")) == compared(("", ""), ("", ""))
    assert not compared(("a", ""), ("a", "")).different


def test_two_legal_results_that_differ_are_counted():
    found = compared(("a", ""), ("b", ""))
    assert (found.different, found.divergence) == (True, None)


def test_a_difference_where_nothing_is_promised_is_a_divergence():
    found = compared(("", ""), ("", "b"), judged={"unspecified": 1})
    assert found.divergence is not None
    assert (found.divergence.kind, found.divergence.verdict) == ("backends differ", Verdict.DIVERGENCE)
    assert found.divergence.ranks == (1,)
    assert "gloo and vllm-model" in str(found.divergence)


def test_deviations_from_two_predictions_are_not_compared():
    other = replace(CONTRACT, average=Promise(("pre/n",), ""))
    assert not compared(("a", ""), ("b", ""), other=other).different


def test_the_second_backend_is_the_odd_one_out():
    def script(case, run):
        return [wrong()] if case.backend == "vllm-model" else []

    ran = scripted(script, against="vllm-model")
    (finding,) = ran.findings
    assert finding.title == "vllm-model all_reduce: wrong result"
    assert finding.case.backend == "vllm-model"
    assert finding.agrees == "the reference and gloo agree on this program"


def test_the_first_backend_is_the_odd_one_out():
    def script(case, run):
        return [wrong()] if case.backend == "gloo" else []

    (finding,) = scripted(script, against="vllm-model").findings
    assert finding.title == "gloo all_reduce: wrong result"
    assert finding.agrees == "the reference and vllm-model agree on this program"


def test_both_may_be_wrong():
    (finding,) = scripted(lambda case, run: [wrong()], against="vllm-model", backend="gloo").findings
    assert finding.agrees == "vllm-model fails on this program too: wrong result"


def test_what_cannot_be_compared_is_counted():
    ran = scripted(lambda case, run: [], against="vllm-model")
    assert ran.finished.compared > 0
    assert ran.finished.not_comparable > 0
    assert ran.finished.compared + ran.finished.not_comparable == ran.finished.cases


def real(runner, backend, against, *, examples, fault=None, **filters):
    session = Session(backend, (2, 3), Budget(examples=examples), fault=fault, layouts="contiguous", memory=1 << 26)
    session = replace(session, **filters)
    heard, store = [], Memory()
    ran = Campaign(
        runner,
        space(session, runner.backend(backend)),
        budget=session.budget,
        seed=0,
        database=None,
        listener=heard.append,
        store=store,
        against=against,
    )
    return Ran(store.kept, heard, ran.run())


def test_two_right_backends(runner):
    ran = real(runner, "gloo", "vllm-model", examples=60, ops=("all_reduce",))
    assert ran.findings == []
    assert ran.finished.compared > 5


def test_a_faulty_backend_is_named_beside_a_right_one(runner):
    ran = real(runner, "vllm-model", "gloo", fault="tail-not-written", examples=60)
    (finding,) = ran.findings
    assert finding.case.backend == "vllm-model"
    assert finding.agrees == "the reference and gloo agree on this program"
