"""Every verdict on an illegal program, from observations made up here."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from corpus.case import Call, Case, Group, Layout, Tensor, TensorSpec, World
from corpus.contract import Contract, OpContract, Promise
from corpus.meaning import check
from oracles import illegal
from oracles.buffers import build
from oracles.failure import Verdict
from oracles.judge import judge
from oracles.observation import Observation, Status

FLOATS = ("float32", "bfloat16")
CONTRACT = Contract(
    "test",
    {
        "all_reduce": OpContract("docs", reduce_ops={"sum": FLOATS, "max": FLOATS}, in_place=True),
        "broadcast": OpContract("docs", dtypes=FLOATS, in_place=True),
        "all_gather_into_tensor": OpContract("docs", dtypes=FLOATS),
    },
    views=Promise("right", "docs"),
)
PROMISES = replace(CONTRACT, illegal={"reduce op": Promise(("all_reduce",), "docs: it raises")})

X = TensorSpec((4,))
SUM = Call("all_reduce", ("x",), ("x",), reduce_op="sum")
CASE = Case(
    "test",
    World(2),
    (Tensor("x", X),),
    (SUM,),
    illegal="reduce op",
    programs=((1, (replace(SUM, reduce_op="max"),)),),
)


def seen(rank: int, status: Status = Status.OK, *, timed_out: bool = False, **given: Any) -> Observation:
    """What a rank reports that finished, or raised, in call 0."""
    report = {"timed_out": timed_out, "changes": given.pop("changes", []), "held": given.pop("held", {})}
    raised = {"error": "no", "error_type": "ValueError"} if status is Status.RAISED else {}
    reports = {"illegal": report, **given.pop("reports", {})}
    return Observation(rank, status, call=0, reports=reports, **raised, **given)


def verdicts(*observations: Observation, case: Case = CASE, contract: Contract = CONTRACT) -> list[tuple[str, Any]]:
    failures = list(illegal.judge(case, contract, observations))
    assert {failure.verdict for failure in failures} <= {Verdict.ILLEGAL}
    return [(failure.kind, failure.ranks) for failure in failures]


RAISED = Status.RAISED


def test_raising_everywhere_is_legal():
    assert verdicts(seen(0, RAISED), seen(1, RAISED)) == []
    assert verdicts(seen(0, RAISED), seen(1, RAISED, timed_out=True)) == []


def test_silently_accepted():
    assert verdicts(seen(0), seen(1)) == [("silently accepted", (0, 1))]
    (failure,) = illegal.judge(CASE, CONTRACT, [seen(0, held={"x": "3 and 7"}), seen(1)])
    assert "ranks that disagree about the reduce op: no rank raised; rank 0's x is 3 and 7" in str(failure)


def test_raised_on_some_ranks():
    assert verdicts(seen(0, RAISED), seen(1)) == [("raised on some ranks", (1,))]
    assert verdicts(seen(0, RAISED), seen(1, Status.HUNG)) == [("raised on some ranks", (1,))]
    (failure,) = illegal.judge(CASE, CONTRACT, [seen(0, RAISED), seen(1, Status.HUNG)])
    assert "raised on rank 0 (ValueError: no), but rank 1 did not return from call 0" in str(failure)


def test_hang():
    assert verdicts(seen(0, Status.HUNG), seen(1, Status.HUNG)) == [("hang", (0, 1))]
    assert verdicts(seen(0), seen(1, Status.HUNG)) == [("hang", (1,))]


def test_crash_comes_before_what_follows_from_it():
    died = seen(1, Status.DIED, signal="SIGABRT", output="what(): no match")
    assert verdicts(seen(0, RAISED), died) == [("crash", (1,))]
    (failure,) = illegal.judge(CASE, CONTRACT, [seen(0, RAISED), died])
    assert "rank 1 died by SIGABRT; its last output: what(): no match" in str(failure)


def test_stopped_from_outside():
    assert verdicts(seen(0), seen(1, Status.STOPPED)) == [("stopped", (1,))]


@pytest.mark.parametrize(
    ("what", "timed_out", "found"),
    [
        ("input", False, True),
        ("input", True, True),
        ("neighbours", True, True),
        ("output", False, True),
        # Some ranks communicated before the library gave up: an output may hold what came until then.
        ("output", True, False),
    ],
)
def test_tensors_changed_although_it_raised(what, timed_out, found):
    change = {"tensor": "x", "what": what, "text": "2 elements of x changed"}
    kinds = verdicts(seen(0, RAISED), seen(1, RAISED, timed_out=timed_out, changes=[change]))
    assert kinds == ([("tensors changed although it raised", (1,))] if found else [])


def probes(first: Observation, second: Observation) -> list[Observation]:
    return [
        seen(0, RAISED, reports={"probe": first.to_json()}),
        seen(1, RAISED, reports={"probe": second.to_json()}),
    ]


def probed(rank: int, wrong: int = 0) -> Observation:
    first = {"index": 0, "observed": "1", "legal": "3", "inputs": []}
    entry = {"call": 0, "output": "p0", "elements": 3, "wrong": wrong, "unjudged": 0, "first": [first], "judged": {}}
    entry |= {"power": None, "deviations": "", "explanation": "", "form": ""}
    return Observation(rank, Status.OK, reports={"numeric": {"outputs": [entry]}})


def test_group_usable_afterwards():
    assert verdicts(*probes(probed(0), probed(1))) == []


def test_group_unusable_afterwards():
    hung = Observation(1, Status.HUNG)
    assert verdicts(*probes(probed(0), hung)) == [("group unusable afterwards", (1,))]
    assert verdicts(*probes(probed(0), probed(1, wrong=1))) == [("group unusable afterwards", (1,))]


def test_a_broken_promise_is_a_bug_and_nothing_else_is():
    for observations in ([seen(0), seen(1)], [seen(0, RAISED), seen(1)], [seen(0, Status.HUNG), seen(1, Status.HUNG)]):
        (plain,) = illegal.judge(CASE, CONTRACT, observations)
        (promised,) = illegal.judge(CASE, PROMISES, observations)
        assert (plain.bug, promised.bug, promised.promise) == (False, True, "docs: it raises")
    (unusable,) = illegal.judge(CASE, PROMISES, probes(probed(0), Observation(1, Status.HUNG)))
    assert not unusable.bug


def test_a_rank_that_makes_fewer_calls_cannot_know():
    fewer = replace(CASE, illegal="count", programs=((1, ()),))
    assert verdicts(seen(0, RAISED, timed_out=True), seen(1), case=fewer) == []
    assert verdicts(seen(0), seen(1), case=fewer) == [("silently accepted", (0,))]
    more = replace(CASE, illegal="count", programs=((1, (SUM, SUM)),))
    assert verdicts(seen(0), seen(1, RAISED, timed_out=True), case=more) == []


def test_a_rank_outside_of_the_group_takes_no_part():
    case = Case(
        "test",
        World(3, (Group("g0", (0, 1)),)),
        (Tensor("x", X, ((1, replace(X, dtype="bfloat16")),)),),
        (replace(SUM, group="g0"),),
        illegal="dtype",
    )
    assert verdicts(seen(0, RAISED), seen(1, RAISED), seen(2), case=case) == []


def test_the_judge_asks_nobody_else():
    digests = [replace(seen(0), digest=""), replace(seen(1), digest="")]
    with pytest.raises(RuntimeError, match="ran case without a digest"):
        judge(CASE, CONTRACT, digests)
    refused = judge(CASE, CONTRACT, [seen(0, RAISED), seen(1, RAISED)])
    assert (refused.failures, refused.refused) == ([], True)
    hung = judge(CASE, CONTRACT, [seen(0, RAISED), seen(1, Status.HUNG)])
    assert [failure.kind for failure in hung.failures] == ["raised on some ranks"]
    assert not hung.refused


@pytest.mark.parametrize(
    ("observations", "asked"),
    [
        ([seen(0, RAISED), seen(1, RAISED)], True),
        ([seen(0), seen(1)], True),
        ([seen(0, RAISED), seen(1)], False),
        ([seen(0, RAISED), seen(1, RAISED, timed_out=True)], False),
        ([seen(0, RAISED), seen(1, Status.HUNG)], False),
        ([seen(0, RAISED), seen(1, Status.DIED)], False),
    ],
)
def test_the_group_is_tried_where_that_says_something(observations, asked):
    assert (illegal.probe(CASE, CONTRACT, observations) is not None) == asked


@pytest.mark.parametrize("op", ["all_reduce", "broadcast", "all_gather_into_tensor"])
def test_what_tries_a_group_is_legal(op):
    twin = replace(CASE, world=World(2, (Group("twin", (0, 1)),)), illegal="group")
    twin = replace(twin, programs=((1, (replace(SUM, group="twin"),)),))
    contract = replace(CONTRACT, ops={op: CONTRACT.ops[op]})
    following = illegal.probe(twin, contract, [seen(0), seen(1)])
    assert following is not None
    check(following)
    assert [(call.op, call.group) for call in following.program] == [(op, "world"), (op, "twin")]


GUARDED = Case(
    "test",
    World(2),
    (
        Tensor("x", X),
        Tensor("y", TensorSpec((6,), layout=Layout(after=2), payload="poison")),
    ),
    (Call("all_gather_into_tensor", ("x",), ("y",)),),
    illegal="output size",
)


@pytest.mark.parametrize(
    ("raised", "name", "place", "what"),
    [
        (0, "x", 0, "input"),
        (0, "y", 5, "output"),
        (0, "y", 6, "neighbours"),
        (None, "x", 3, "input"),
        (None, "y", 5, None),
        (None, "y", 7, "neighbours"),
    ],
)
def test_what_changed_is_seen(raised, name, place, what):
    buffers = build(GUARDED, 0, torch.device("cpu"))
    base = buffers[name].base
    assert base is not None
    base[place] = 1234.0
    report = illegal.observe(GUARDED, CONTRACT, 0, buffers, raised=raised, timed_out=False)["illegal"]
    assert [(change["tensor"], change["what"]) for change in report["changes"]] == ([(name, what)] if what else [])
    assert (report["held"] == {}) == (raised is not None)


def test_what_an_earlier_call_wrote_is_no_change():
    first, second = SUM, Call("broadcast", ("x_2",), ("x_2",), root=0)
    case = replace(
        CASE,
        tensors=(Tensor("x", X), Tensor("x_2", X)),
        program=(first, second),
        illegal="order",
        programs=((1, (second, first)),),
    )
    buffers = build(case, 0, torch.device("cpu"))
    base = buffers["x"].base
    assert base is not None
    base[0] = 1234.0
    assert illegal.observe(case, CONTRACT, 0, buffers, raised=1, timed_out=False)["illegal"]["changes"] == []
    (change,) = illegal.observe(case, CONTRACT, 0, buffers, raised=0, timed_out=False)["illegal"]["changes"]
    assert (change["tensor"], change["what"]) == ("x", "output")


@pytest.mark.parametrize(("stored", "says"), [("sum", "the result is right"), ("other", "the result is wrong")])
def test_an_unsupported_dtype_that_is_accepted_is_judged(stored, says):
    case = replace(CASE, tensors=(Tensor("x", replace(X, dtype="float64")),), illegal="unsupported dtype", programs=())
    observations = []
    every = [build(case, rank, torch.device("cpu")) for rank in range(2)]
    bases = [buffers["x"].base for buffers in every]
    assert bases[0] is not None
    assert bases[1] is not None
    total = bases[0] + bases[1] + (stored == "other")
    for rank, buffers in enumerate(every):
        buffers["x"].base.copy_(total)  # type: ignore[union-attr]
        reports = illegal.observe(case, CONTRACT, rank, buffers, raised=None, timed_out=False)
        observations.append(Observation(rank, Status.OK, call=0, reports=reports))
    (failure,) = illegal.judge(case, CONTRACT, observations)
    assert (failure.kind, says in str(failure)) == ("silently accepted", True)
