"""A failure that does not always happen: its rate, how it is shrunk, and what is told of it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import strategies as st

from fuzz import events
from fuzz.campaign import FLAKY_RUNS, RERUNS, Budget, Campaign
from fuzz.flaky import at_least, describe, interval, repeats
from fuzz.session import Session, space
from oracles.failure import LivenessFailure, Verdict
from oracles.observation import Observation, Status
from tests.fuzz.scripted import ScriptedRunner, all_reduce, scripted, wrong
from tests.quality.helpers import Memory


@pytest.mark.parametrize(
    ("again", "runs", "low", "high"),
    # R 4.3, binom.test(again, runs)$conf.int
    [
        (0, 30, 0.0, 0.1157033),
        (1, 10, 0.002528579, 0.4450161),
        (5, 10, 0.1870860, 0.8129140),
        (9, 30, 0.1473452, 0.4939590),
        (30, 30, 0.8842967, 1.0),
    ],
)
def test_an_interval_is_clopper_and_pearson_s(again, runs, low, high):
    assert interval(again, runs) == pytest.approx((low, high), abs=1e-6)


@pytest.mark.parametrize("rate", [0.03, 0.3, 0.5, 0.9])
def test_an_interval_covers_the_rate_often_enough(rate):
    def chance(hits):
        return at_least(hits, 30, rate) - at_least(hits + 1, 30, rate)

    covered = [hits for hits in range(31) if interval(hits, 30)[0] <= rate <= interval(hits, 30)[1]]
    assert sum(chance(hits) for hits in covered) >= 0.95


@pytest.mark.parametrize(("again", "runs"), [(1, 0), (4, 3), (-1, 3)])
def test_an_interval_of_nothing_is_refused(again, runs):
    with pytest.raises(ValueError, match="runs"):
        interval(again, runs)


@pytest.mark.parametrize("rate", [0.2, 1 / 3, 0.5, 0.9])
def test_as_many_runs_as_show_a_failure_with_95_percent(rate):
    assert 1 - (1 - rate) ** repeats(rate) >= 0.95
    assert 1 - (1 - rate) ** (repeats(rate) - 1) < 0.95


def test_what_always_fails_is_run_once_and_what_hardly_does_not_for_ever():
    assert repeats(1.0) == 1
    assert repeats(0.001) == repeats(0.0) == 20


def test_a_rate_in_words():
    assert describe(9, 30) == "in 9 of 30 runs (30 %, 95 % interval 15 % to 49 %)"
    assert describe(3, 3) == "in 3 of 3 re-runs"


def every_third(case, run):
    """Fails in every third run, of cases that have three elements or more."""
    return [wrong()] if run % 3 == 0 and case.tensors[0].spec.numel >= 3 else []


def test_a_flaky_failure_is_shrunk_and_carries_its_rate():
    ran = scripted(every_third)
    (finding,) = ran.findings
    assert [tensor.spec.shape for tensor in finding.case.tensors] == [(3,)]
    assert len(finding.case.program) == 1
    assert (finding.again, finding.runs) == (10, FLAKY_RUNS)
    assert finding.flaky
    assert finding.title == "gloo all_reduce: wrong result (flaky)"
    assert finding.rate == "fails in 10 of 30 runs (33 %, 95 % interval 17 % to 53 %)"
    assert ran.finished.findings == 1


def test_a_failure_that_always_happens_is_not_run_so_often():
    (finding,) = scripted(lambda case, run: [wrong()]).findings
    assert (finding.again, finding.runs) == (RERUNS, RERUNS)
    assert not finding.flaky


def test_a_failure_that_does_not_happen_again_is_told_with_its_rate():
    (finding,) = scripted(lambda case, run: [wrong()] if run == 5 else []).findings
    assert (finding.again, finding.runs) == (0, FLAKY_RUNS)
    assert finding.rate == "fails in 0 of 30 runs (0 %, 95 % interval 0 % to 12 %)"


def test_a_signal_from_outside_that_does_not_come_again_is_an_incident(monkeypatch):
    plain = ScriptedRunner.run

    def run(self, case):
        outcome = plain(self, case)
        if self.runs == 6:
            died = Observation(0, Status.DIED, signal="SIGKILL")
            object.__setattr__(outcome, "observations", (died, *outcome.observations[1:]))
        return outcome

    monkeypatch.setattr(ScriptedRunner, "run", run)
    crash = LivenessFailure("crash", "rank 0 died by SIGKILL", call=0, op="all_reduce", verdict=Verdict.DEAD)
    ran = scripted(lambda case, run: [crash] if run == 5 else [], examples=30)
    assert ran.findings == []
    (incident,) = [event for event in ran.events if isinstance(event, events.Incident)]
    assert "did not happen again in 3 runs" in incident.text
    # The campaign goes on.
    assert ran.finished.drawn == 30


def test_a_seeded_fault_that_shows_in_three_of_ten_runs(runner):
    """nccl#2001, on real ranks: the case is given, its rate is found."""
    session = Session("gloo", (2,), Budget(examples=20), fault="flaky-at-1-mib", ops=("all_reduce",))
    store = Memory()
    ran = Campaign(
        runner,
        space(session, runner.backend("gloo")),
        budget=session.budget,
        seed=0,
        database=None,
        listener=lambda event: None,
        store=store,
    )
    case = all_reduce(1 << 18, fault="flaky-at-1-mib")
    ran._strategy = st.integers(0, 1 << 32).map(lambda seed: replace(case, seed=seed))
    ran.run()
    (finding,) = store.kept
    assert finding.flaky
    low, high = interval(finding.again, finding.runs)
    assert low <= 0.3 <= high
