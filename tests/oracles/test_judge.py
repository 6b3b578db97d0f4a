"""Verdicts are put together in one order, and our own mistakes are not called the library's."""

import json

import pytest
import torch
from simulated import Simulation, case_of, contract

from corpus.case import Layout
from corpus.codec import digest
from oracles.judge import judge
from oracles.observation import Observation, Status
from oracles.observe import observe

CASE = case_of("all_reduce", (6,), reduce_op="sum")


def test_a_lost_rank_is_no_verdict():
    observations = [Observation(0, Status.HUNG), Observation(1, Status.LOST, error="node gone")]
    judgement = judge(CASE, contract(), observations)
    assert (judgement.failures, judgement.lost) == ([], "rank 1: node gone")


def test_another_case_than_the_one_asked_for_is_our_mistake():
    with pytest.raises(RuntimeError, match="rank 1 ran case 0123"):
        judge(CASE, contract(), [Observation(0, Status.OK, digest(CASE)), Observation(1, Status.OK, "0123")])


def test_the_order_of_observations_does_not_matter():
    simulation = Simulation(case_of("all_reduce", (6,), layout=Layout(strides=(2,)), reduce_op="sum"))
    simulation.buffers[0]["x"].base[1] = 5.0
    mine = digest(simulation.case)
    seen = [
        Observation(rank, Status.OK, mine, reports=observe(simulation.case, contract(), rank, buffers))
        for rank, buffers in enumerate(simulation.buffers)
    ]
    texts = [
        [failure.to_json() for failure in judge(simulation.case, contract(), one_order).failures]
        for one_order in (seen, seen[::-1])
    ]
    assert texts[0] == texts[1]
    assert [text["kind"] for text in texts[0]] == ["wrong result", "neighbours changed"]


def test_a_report_survives_json():
    simulation = Simulation(case_of("all_gather", (6,), dtype="complex64"))
    simulation.buffers[0]["x"].view[2] = 5.0
    report = observe(simulation.case, contract(), 0, simulation.buffers[0])
    assert json.loads(json.dumps(report)) == report


def test_a_thread_that_flushes_subnormals_is_judged_all_the_same():
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor cannot flush subnormal numbers")
    try:
        simulation = Simulation(case_of("all_reduce", (400,), payload="special", reduce_op="sum")).run()
        kinds = [failure.kind for failure in simulation.judge().failures]
    finally:
        torch.set_flush_denormal(False)
    assert kinds == ["wrong result"]
