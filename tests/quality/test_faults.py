"""Statistical power: each seeded fault is found within so many examples, and its minimal case is exactly this."""

from __future__ import annotations

import pytest

from corpus.describe import describe
from fuzz.faults import FAULTS
from fuzz.runner import Runner
from tests.quality.helpers import campaign

# fault: (collectives drawn, world sizes, examples, first symptom, the minimal program in words)
MINIMAL = {
    "missing-contribution": (
        ("all_reduce",),
        (2, 3),
        60,
        "wrong result",
        ["gloo, 3 ranks, fault missing-contribution", "x: float32[1], index data", "all_reduce(x, reduce_op=sum)"],
    ),
    "tail-not-written": (
        ("all_reduce",),
        (2,),
        30,
        "wrong result",
        ["gloo, 2 ranks, fault tail-not-written", "x: float32[1], index data", "all_reduce(x, reduce_op=sum)"],
    ),
    "avg-is-sum": (
        ("reduce_scatter_tensor",),
        (2,),
        100,
        "wrong result",
        [
            "gloo, 2 ranks, fault avg-is-sum",
            "x: float32[2], index data",
            "y: float32[1], an output",
            "reduce_scatter_tensor(x, out=y, reduce_op=avg)",
        ],
    ),
    "input-clobbered": (
        ("all_gather",),
        (2,),
        30,
        "input changed",
        [
            "gloo, 2 ranks, fault input-clobbered",
            "x: float32[1], index data",
            "y0: float32[1], an output",
            "y1: float32[1], an output",
            "all_gather(x, out=y0, y1)",
        ],
    ),
    "gather-misordered": (
        ("all_gather_into_tensor",),
        (2, 3),
        60,
        "wrong result",
        [
            "gloo, 3 ranks, fault gather-misordered",
            "x: float32[1], index data",
            "y: float32[3], an output",
            "all_gather_into_tensor(x, out=y)",
        ],
    ),
    "elements-for-bytes": (
        ("all_reduce",),
        (2,),
        200,
        "wrong result",
        ["gloo, 2 ranks, fault elements-for-bytes", "x: bfloat16[1025], index data", "all_reduce(x, reduce_op=sum)"],
    ),
    "crash-on-empty": (
        ("broadcast",),
        (2,),
        200,
        "crash",
        ["gloo, 2 ranks, fault crash-on-empty", "x: float32[0], index data", "broadcast(x, root=0)"],
    ),
    "hang-on-few": (
        ("all_gather",),
        (2,),
        40,
        "hang",
        [
            "gloo, 2 ranks, fault hang-on-few",
            "x: float32[1], index data",
            "y0: float32[1], an output",
            "y1: float32[1], an output",
            "all_gather(x, out=y0, y1)",
        ],
    ),
    "min-max-swapped": (
        ("all_reduce",),
        (2,),
        60,
        "wrong result",
        ["gloo, 2 ranks, fault min-max-swapped", "x: float32[1], index data", "all_reduce(x, reduce_op=max)"],
    ),
    "right-on-first-rank-only": (
        ("all_reduce",),
        (2,),
        40,
        "wrong result",
        ["gloo, 2 ranks, fault right-on-first-rank-only", "x: float32[2], index data", "all_reduce(x, reduce_op=sum)"],
    ),
    "own-rank-first": (
        ("all_reduce",),
        (3,),
        200,
        "ranks disagree",
        ["gloo, 3 ranks, fault own-rank-first", "x: float32[2], wide data", "all_reduce(x, reduce_op=sum)"],
    ),
    "tail-of-128": (
        ("reduce_scatter_tensor",),
        (2,),
        150,
        "wrong result",
        [
            "gloo, 2 ranks, fault tail-of-128",
            "x: float32[258], index data",
            "y: float32[129], an output",
            "reduce_scatter_tensor(x, out=y, reduce_op=sum)",
        ],
    ),
    "group-root-as-global": (
        ("broadcast",),
        (2, 3),
        150,
        "wrong result",
        [
            "gloo, 2 ranks, group g0 = [1, 0], fault group-root-as-global",
            "x: float32[1], index data",
            "broadcast(x, root=0, group=g0)",
        ],
    ),
}


def test_a_minimal_case_is_known_of_faults_that_there_are() -> None:
    assert set(MINIMAL) <= set(FAULTS)


@pytest.mark.parametrize("fault", MINIMAL)
def test_a_fault_is_found_and_shrunk_to_its_minimal_case(runner: Runner, fault: str) -> None:
    ops, worlds, examples, kind, program = MINIMAL[fault]
    # Contiguous, since gloo itself is wrong on views.
    ran = campaign(runner, worlds=worlds, fault=fault, examples=examples, ops=ops, layouts="contiguous", memory=1 << 20)
    found = {finding.primary["kind"]: finding for finding in ran.findings}
    assert kind in found
    assert describe(found[kind].case) == program
    assert found[kind].again == found[kind].runs
