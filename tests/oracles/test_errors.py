"""An exception is a refusal where every rank raises it and the contract allows it, and a failure otherwise."""

from dataclasses import replace

import pytest
from simulated import case_of, contract

from corpus.case import Layout
from corpus.codec import digest
from oracles.judge import judge
from oracles.observation import Observation, Status

DENSE = case_of("all_reduce", (6,), world=3, reduce_op="sum")
STRIDED = case_of("all_reduce", (6,), world=3, layout=Layout(strides=(2,)), reduce_op="sum")
NEGATED = case_of("all_reduce", (6,), world=3, layout=Layout(neg=True), reduce_op="sum")


def raised(rank):
    return Observation(rank, Status.RAISED, call=0, error="no strides, please\nsecond line", error_type="RuntimeError")


def everywhere(case):
    return [raised(rank) for rank in range(case.world.size)]


@pytest.mark.parametrize("case", [STRIDED, NEGATED])
@pytest.mark.parametrize("views", ["right or refused", "refused"])
def test_every_rank_may_refuse_a_view(case, views):
    judgement = judge(case, contract(views=views), everywhere(case))
    assert (judgement.failures, judgement.refused) == ([], True)


@pytest.mark.parametrize(("case", "views"), [(DENSE, "right or refused"), (STRIDED, "right")])
def test_what_works_by_contract_is_not_refused(case, views):
    judgement = judge(case, contract(views=views), everywhere(case))
    (failure,) = judgement.failures
    assert (failure.oracle, failure.kind, failure.ranks, judgement.refused) == ("errors", "refused", (0, 1, 2), False)
    assert "RuntimeError: no strides, please" in failure.message


def test_a_rank_that_was_ended_while_it_waited_tells_nothing():
    other = Observation(2, Status.CUT_SHORT, call=0)
    (failure,) = judge(DENSE, contract(views="right or refused"), [raised(0), raised(1), other]).failures
    assert (failure.kind, failure.ranks) == ("refused", (0, 1))
    assert "rank 2 waited and had to be ended" in failure.message


@pytest.mark.parametrize("status", [Status.OK, Status.HUNG])
def test_some_ranks_raise(status):
    other = Observation(2, status, digest=digest(DENSE), call=0)
    (failure,) = judge(DENSE, contract(views="right or refused"), [raised(0), raised(1), other]).failures
    assert (failure.kind, failure.ranks) == ("raised on some ranks", (0, 1))


@pytest.mark.parametrize("status", [Status.OK, Status.HUNG, Status.CUT_SHORT])
def test_a_rank_may_refuse_what_it_alone_holds(status):
    spec = DENSE.tensors[0].spec
    view = replace(spec, layout=Layout(strides=(2,)))
    case = replace(DENSE, tensors=(replace(DENSE.tensors[0], overrides=((1, view),)),))
    others = [Observation(rank, status, digest=digest(case), call=0) for rank in (0, 2)]
    judgement = judge(case, contract(views="right or refused"), [others[0], raised(1), others[1]])
    assert (judgement.failures, judgement.refused) == ([], True)
    (failure,) = judge(case, contract(views="right or refused"), [raised(0), others[1], others[1]]).failures
    assert failure.kind == ("refused" if status is Status.CUT_SHORT else "raised on some ranks")


def test_a_dtype_that_is_not_in_the_contract_may_be_refused():
    promised = contract()
    ops = {**promised.ops, "all_reduce": replace(promised.ops["all_reduce"], reduce_ops={"sum": ("int32",)})}
    judgement = judge(DENSE, replace(promised, ops=ops), everywhere(DENSE))
    assert (judgement.failures, judgement.refused) == ([], True)


def test_ranks_that_take_no_part_need_not_raise():
    case = case_of("send_recv", (6,), world=3, layout=Layout(strides=(2,)))
    bystander = Observation(2, Status.OK, digest=digest(case), call=0)
    judgement = judge(case, contract(views="refused"), [raised(0), raised(1), bystander])
    assert (judgement.failures, judgement.refused) == ([], True)


def test_what_a_refused_call_changed_is_reported():
    change = {"call": 0, "tensor": "x", "kind": "input changed", "text": "1 of 6 elements changed"}
    reports = {"preservation": {"changes": [change], "unspecified": 0, "allowed": 0}}
    observations = [raised(0), raised(1), replace(raised(2), reports=reports)]
    failures = judge(STRIDED, contract(views="right or refused"), observations).failures
    assert [failure.kind for failure in failures] == ["input changed"]
