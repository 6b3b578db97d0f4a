"""What is true of a released library: bugs of gloo in torch 2.13.0 that the fuzzer finds by itself."""

from __future__ import annotations

import pytest
import torch

from corpus.describe import describe
from fuzz.runner import Runner
from tests.quality.helpers import campaign

released = pytest.mark.skipif(
    not torch.__version__.startswith("2.13."), reason=f"written for torch 2.13, this is {torch.__version__}"
)


@released
def test_a_strided_all_reduce_is_wrong_and_overwrites_its_neighbours(runner: Runner) -> None:
    ran = campaign(runner, ops=("all_reduce",), dtypes=("float32",), examples=100)
    strided = [finding for finding in ran.findings if finding.key == "gloo-all_reduce-wrong-result-strided"]
    assert len(strided) == 1
    assert strided[0].kinds == {"wrong result", "neighbours changed"}
    assert describe(strided[0].case) == [
        "gloo, 2 ranks",
        "x: float32[2], strides (2,), index data",
        "all_reduce(x, reduce_op=sum)",
    ]


def test_contiguous_all_reduce_is_clean(runner: Runner) -> None:
    ran = campaign(
        runner, worlds=(2, 3, 4), ops=("all_reduce", "broadcast", "reduce"), examples=150, layouts="contiguous"
    )
    # NaN in MAX and MIN may be noted: gloo keeps it by position, and promises nothing.
    assert [finding for finding in ran.findings if finding.bug] == []


def test_the_same_seed_draws_the_same_cases(runner: Runner) -> None:
    runs = [campaign(runner, ops=("broadcast",), layouts="contiguous", examples=40, seed=5).digests for _ in range(2)]
    assert len(runs[0]) == 40
    assert runs[0] == runs[1]


def test_another_seed_draws_other_cases(runner: Runner) -> None:
    runs = [
        campaign(runner, ops=("broadcast",), layouts="contiguous", examples=20, seed=seed).digests for seed in (1, 2)
    ]
    assert set(runs[0]) != set(runs[1])
