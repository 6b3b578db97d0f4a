"""Report A: an out-of-place all-reduce that reduces in place from 4,194,304 elements on, found as a user would."""

from __future__ import annotations

import pytest

from corpus.describe import describe
from fuzz.runner import Runner
from tests.quality.helpers import campaign

FAULT = "inplace-above-threshold"


@pytest.mark.parametrize("seed", range(5))
def test_report_a_is_found_and_is_exactly_its_threshold(runner: Runner, seed: int) -> None:
    ran = campaign(runner, backend="vllm-model", fault=FAULT, examples=300, seed=seed)
    (finding,) = ran.findings
    assert describe(finding.case) == [
        "vllm-model, 2 ranks, fault inplace-above-threshold",
        "x: float32[4194304], index data",
        "out: float32[4194304], returned by the call",
        "all_reduce(x, out=out, reduce_op=sum)",
    ]
    assert finding.primary["kind"] == "input changed"
    assert finding.kinds >= {"input changed", "output aliases input"}
    assert "4194303" in finding.reach.passed["elements"]
    assert "4194305" in finding.reach.failed["elements"]


def test_the_fixed_operator_is_clean(runner: Runner) -> None:
    ran = campaign(runner, backend="vllm-model", worlds=(2, 3), examples=150, seed=7)
    assert ran.findings == []
    assert ran.finished.cases == 150


@pytest.mark.parametrize(
    "flags", [(("VLLM_INPLACE_AR_MIN", "1024"),), (("VLLM_V41_PACKED_KV", "1"),)], ids=["minimum", "packed"]
)
def test_the_in_place_path_is_legal_where_a_person_asked_for_it(
    runner: Runner, flags: tuple[tuple[str, str], ...]
) -> None:
    ran = campaign(runner, backend="vllm-model", flags=flags, examples=100, seed=3)
    assert ran.findings == []
