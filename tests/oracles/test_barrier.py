"""A barrier that a rank leaves early."""

from __future__ import annotations

import pytest

from corpus.case import Call, Case, World
from corpus.contract import Contract, OpContract, Promise
from oracles import barrier
from oracles.observation import Observation, Status

CASE = Case("test", World(3), (), (Call("barrier"),))
CONTRACT = Contract("test", {"barrier": OpContract("a barrier")}, Promise("right", "a test"))


def passed(rank: int, entered: float, left: float, machine: str = "here") -> Observation:
    return Observation(rank, Status.OK, reports={"barrier": {"machine": machine, "calls": [[0, entered, left]]}})


@pytest.mark.parametrize("lefts", [(3.0, 3.0, 3.0), (3.5, 3.1, 4.0)])
def test_all_wait_for_the_last(lefts: tuple[float, ...]) -> None:
    seen = [passed(rank, float(rank + 1), left) for rank, left in enumerate(lefts)]
    assert list(barrier.judge(CASE, CONTRACT, seen)) == []


def test_one_does_not_wait() -> None:
    seen = [passed(0, 1.0, 1.5), passed(1, 1.25, 3.0), passed(2, 2.0, 3.0)]
    (failure,) = barrier.judge(CASE, CONTRACT, seen)
    assert (failure.kind, failure.ranks, failure.bug) == ("barrier left early", (0,), True)
    assert failure.message == "barrier: rank 0 left the barrier 500.0 ms before rank 2 entered it"


def test_clocks_of_two_machines_are_not_compared() -> None:
    seen = [passed(0, 1.0, 1.5), passed(1, 1.25, 1.5), passed(2, 901.0, 902.0, machine="there")]
    assert list(barrier.judge(CASE, CONTRACT, seen)) == []


def test_a_rank_notes_its_times_on_a_clock_that_goes_forward() -> None:
    report = barrier.observe({0: (1.0, 2.0)})
    assert report["calls"] == [[0, 1.0, 2.0]]
    assert report["machine"]
    assert barrier.observe({}) == {}
