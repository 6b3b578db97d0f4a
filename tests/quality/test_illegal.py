"""What gloo does with illegal programs: live third-party behaviour, so that every verdict has been seen to be given."""

from __future__ import annotations

from dataclasses import replace

import pytest

from corpus.case import Call, Case, CaseError, Group, Tensor, TensorSpec, World
from corpus.dtypes import DTYPES
from corpus.payload import payload
from fuzz.runner import Outcome, Runner
from oracles import illegal
from oracles.observation import Status
from oracles.text import element, listed

DETAIL = (("TORCH_DISTRIBUTED_DEBUG", "DETAIL"),)
"""torch.distributed compares what the ranks call before gloo runs it."""

X = TensorSpec((4,))
SUM = Call("all_reduce", ("x",), ("x",), reduce_op="sum")
BROADCAST = Call("broadcast", ("x_2",), ("x_2",), root=0)

DTYPE = Case("gloo", World(2), (Tensor("x", X, ((1, replace(X, dtype="int32")),)),), (SUM,), illegal="dtype")
"""pytorch#150248: the ranks reduce each other's bits."""
SHAPE = replace(DTYPE, tensors=(Tensor("x", X, ((1, replace(X, shape=(9,))),)),), illegal="shape")
PLAIN = replace(DTYPE, tensors=(Tensor("x", X),), illegal="reduce op", programs=((1, (SUM,)),))
REDUCE_OP = replace(PLAIN, programs=((1, (replace(SUM, reduce_op="max"),)),))
COUNT = replace(PLAIN, illegal="count", programs=((1, ()),))
ROOT = replace(
    PLAIN,
    tensors=(Tensor("x_2", X),),
    program=(BROADCAST,),
    illegal="root",
    programs=((1, (replace(BROADCAST, root=1),)),),
)
ORDER = replace(
    PLAIN,
    tensors=(Tensor("x", X), Tensor("x_2", X)),
    program=(SUM, BROADCAST),
    illegal="order",
    programs=((1, (BROADCAST, SUM)),),
)
GROUP = replace(
    PLAIN,
    world=World(2, (Group("twin", (0, 1)),)),
    illegal="group",
    programs=((1, (replace(SUM, group="twin"),)),),
)
ALIASED = replace(
    PLAIN,
    tensors=(Tensor("x", X), Tensor("y", replace(X, payload="poison"))),
    program=(Call("all_gather", ("x",), ("y", "y")),),
    illegal="aliased outputs",
    programs=(),
)
"""pytorch#14632: `all_gather([y] * 2, x)` keeps the last rank's."""
UNSUPPORTED = replace(
    PLAIN, tensors=(Tensor("x", replace(X, dtype="int16")),), illegal="unsupported dtype", programs=()
)


def run(runner: Runner, case: Case, *flags: tuple[str, str]) -> Outcome:
    outcome = runner.run(replace(case, flags=flags))
    assert outcome.judgement.lost == ""
    return outcome


def kinds(outcome: Outcome) -> list[tuple[str, bool]]:
    return [(failure.kind, failure.bug) for failure in outcome.judgement.failures]


def statuses(outcome: Outcome) -> list[Status]:
    return [seen.status for seen in outcome.observations]


@pytest.mark.parametrize("case", [DTYPE, REDUCE_OP, ALIASED], ids=["dtype", "reduce op", "aliased outputs"])
def test_what_gloo_accepts_silently(runner, case):
    assert kinds(run(runner, case)) == [("silently accepted", False)]


def test_ranks_that_disagree_about_the_dtype_hold_the_same_garbage_as_two_things(runner):
    (failure,) = run(runner, DTYPE).judgement.failures
    assert "rank 0's x is " in str(failure)
    assert "; rank 1's x is " in str(failure)


def test_the_last_rank_wins_in_a_tensor_that_stands_for_all(runner):
    outcome = run(runner, ALIASED)
    held = [seen.reports["illegal"]["held"]["y"] for seen in outcome.observations]
    last = [element(words, DTYPES["float32"]) for words in payload(ALIASED, "x", 1).bits()]
    assert held == [listed(last)] * 2


def test_gloo_aborts_the_process_when_shapes_differ(runner):
    assert kinds(run(runner, SHAPE)) == [("crash", False)]


@pytest.mark.parametrize("case", [ROOT, ORDER, GROUP], ids=["root", "order", "group"])
def test_where_all_ranks_wait_all_time_out(runner, case):
    outcome = run(runner, case)
    assert (kinds(outcome), statuses(outcome)) == ([], [Status.RAISED] * 2)
    assert outcome.judgement.refused
    # After a timeout nothing can be said of the group.
    assert all("probe" not in seen.reports for seen in outcome.observations)


def test_a_rank_that_calls_once_more_than_the_others_times_out(runner):
    outcome = run(runner, COUNT)
    assert (kinds(outcome), statuses(outcome)) == ([], [Status.RAISED, Status.OK])


def test_a_root_that_only_one_of_three_ranks_takes_for_one_leaves_some_in_the_dark(runner):
    case = replace(ROOT, world=World(3))
    assert kinds(run(runner, case)) == [("raised on some ranks", False)]


def test_a_dtype_that_gloo_refuses_leaves_tensors_and_group_as_they_were(runner):
    outcome = run(runner, UNSUPPORTED)
    assert (kinds(outcome), statuses(outcome)) == ([], [Status.RAISED] * 2)
    assert [seen.reports["probe"]["status"] for seen in outcome.observations] == ["ok", "ok"]


def test_the_average_of_integers_is_refused_after_the_sum_was_written(runner):
    case = replace(UNSUPPORTED, tensors=(Tensor("x", replace(X, dtype="int32")),))
    case = replace(case, program=(replace(SUM, reduce_op="avg"),))
    assert kinds(run(runner, case)) == [("tensors changed although it raised", False)]


@pytest.mark.parametrize("case", [DTYPE, SHAPE, ORDER, GROUP, ROOT], ids=["dtype", "shape", "order", "group", "root"])
def test_with_its_checks_on_torch_refuses_on_every_rank(runner, case):
    outcome = run(runner, case, *DETAIL)
    assert (kinds(outcome), statuses(outcome)) == ([], [Status.RAISED] * 2)


def test_the_checks_find_a_call_too_many(runner):
    outcome = run(runner, COUNT, *DETAIL)
    assert (kinds(outcome), statuses(outcome)) == ([], [Status.RAISED, Status.OK])
    assert "failed to pass monitoredBarrier" in outcome.observations[0].error


@pytest.mark.parametrize("case", [DTYPE, SHAPE, ORDER], ids=["dtype", "shape", "order"])
def test_what_the_checks_refuse_leaves_the_group_usable(runner, case):
    outcome = run(runner, case, *DETAIL)
    assert [seen.reports["probe"]["status"] for seen in outcome.observations] == ["ok", "ok"]


@pytest.mark.parametrize("case", [REDUCE_OP, ALIASED], ids=["reduce op", "aliased outputs"])
def test_the_checks_do_not_look_at_reduce_ops_and_aliases(runner, case):
    assert kinds(run(runner, case, *DETAIL)) == [("silently accepted", False)]


def test_what_the_checks_promise_and_do_not_do_would_be_a_bug(runner):
    """Without the checks, and judged by what is promised with them, gloo's abort breaks a promise."""
    outcome = run(runner, SHAPE)
    checked = runner.backend("gloo").contract(dict(DETAIL))
    (failure,) = illegal.judge(SHAPE, checked, outcome.observations)
    assert failure.bug
    assert "called with consistent tensor shapes" in failure.promise


def test_legal_programs_pass_with_the_checks_on(runner):
    case = replace(PLAIN, illegal=None, programs=(), flags=DETAIL)
    assert (kinds(runner.run(case)), statuses(runner.run(case))) == ([], [Status.OK] * 2)


def test_an_illegal_program_leaves_nothing_behind_for_the_next_one(runner):
    run(runner, REDUCE_OP)
    before = runner.rebuilds
    assert kinds(run(runner, UNSUPPORTED)) == []
    assert runner.rebuilds == before + 1


@pytest.mark.parametrize(
    ("case", "says"),
    [
        (replace(UNSUPPORTED, tensors=(Tensor("x", X),)), "gloo takes every dtype in the program"),
        (replace(PLAIN, illegal="device", programs=()), "every tensor is on cpu"),
        (replace(COUNT, fault="input-clobbered"), "faults are seeded in legal programs"),
        (replace(COUNT, programs=((1, (replace(SUM, region=1),)),)), "no regions"),
    ],
)
def test_what_is_not_illegal_here_is_not_run(runner, case, says):
    with pytest.raises(CaseError, match=says):
        runner.run(case)
