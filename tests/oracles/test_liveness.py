"""A crash, a hang and a stop are told apart, and told once."""

import pytest
from simulated import contract

from corpus.case import Call, Case, Tensor, TensorSpec, World
from corpus.codec import digest
from oracles.judge import judge
from oracles.liveness import innermost
from oracles.observation import Observation, Status

CASE = Case(
    "simulated", World(3), (Tensor("x", TensorSpec((6,))),), (Call("all_reduce", ("x",), ("x",), reduce_op="sum"),)
)
FAULTHANDLER = """Thread 0x00007f01 (most recent call first):
  File "/lib/threading.py", line 324 in wait
  File "/lib/threading.py", line 1000 in run

Current thread 0x00007f02 (most recent call first):
  File "/lib/torch/distributed/distributed_c10d.py", line 2938 in all_reduce
  File "/lib/torch/distributed/c10d_logger.py", line 83 in wrapper
  File "/lib/fuzz/ranks/child.py", line 1 in main
"""
TRACEBACK = """Traceback (most recent call last):
  File "/lib/fuzz/ranks/child.py", line 1, in main
  File "/lib/torch/distributed/distributed_c10d.py", line 2938, in all_reduce
"""


def seen(rank, status, **fields):
    return Observation(rank, status, **{"call": 0, "digest": digest(CASE), **fields})


def verdict(*observations):
    (failure,) = judge(CASE, contract(), observations).failures
    return failure


def test_the_rank_that_died_first_is_named():
    failure = verdict(
        seen(0, Status.CUT_SHORT),
        seen(1, Status.DIED, signal="SIGABRT", order=1),
        seen(2, Status.DIED, signal="SIGSEGV", order=0, output="boom\n"),
    )
    assert (failure.kind, failure.ranks) == ("crash", (2,))
    assert failure.message == (
        "rank 2 died by SIGSEGV in call 0 (all_reduce); its last output: boom; rank 1 died after it; "
        "rank 0 had to be ended"
    )


def test_the_signal_is_no_part_of_the_symptom():
    crashes = [
        verdict(seen(0, Status.OK), seen(1, Status.DIED, signal=signal), seen(2, Status.OK))
        for signal in ("SIGSEGV", "SIGABRT")
    ]
    assert crashes[0].symptom == crashes[1].symptom == ("all_reduce", "crash")


def test_a_hang_names_where_each_rank_waits_and_who_finished():
    failure = verdict(
        seen(0, Status.HUNG, stack=FAULTHANDLER), seen(1, Status.OK), seen(2, Status.HUNG, stack=FAULTHANDLER)
    )
    assert (failure.kind, failure.ranks) == ("hang", (0, 2))
    assert "all_reduce (distributed_c10d.py:2938)" in failure.message
    assert failure.message.endswith("rank 1 finished")


def test_a_world_that_waits_for_a_stopped_rank_is_stopped():
    failure = verdict(seen(0, Status.HUNG), seen(1, Status.STOPPED), seen(2, Status.HUNG))
    assert (failure.kind, failure.ranks) == ("stopped", (1,))


def test_a_rank_that_raises_when_its_peer_dies_is_no_second_failure():
    failure = verdict(
        seen(0, Status.RAISED, error="Connection reset by peer"),
        seen(1, Status.DIED, signal="SIGSEGV"),
        seen(2, Status.RAISED, error="Connection reset by peer"),
    )
    assert failure.kind == "crash"


def test_a_death_before_the_first_call_has_no_op():
    failure = verdict(seen(0, Status.OK), seen(1, Status.DIED, signal="SIGSEGV", call=-1), seen(2, Status.OK))
    assert (failure.call, failure.op, "before the first call" in failure.message) == (-1, "", True)


@pytest.mark.parametrize("stack", [FAULTHANDLER, TRACEBACK])
def test_the_innermost_frame_comes_first(stack):
    assert innermost(stack).startswith("at all_reduce (distributed_c10d.py:2938), called by ")


def test_a_stack_of_another_kind_is_quoted():
    assert innermost("no Python here") == "stack 'no Python here'"
