"""Regions on real ranks: calls that gloo coalesces, or sends in one batch."""

from __future__ import annotations

from dataclasses import replace

import pytest

from corpus.case import Call, Case, CaseError, Group, Tensor, TensorSpec, World
from corpus.describe import describe
from corpus.meaning import check
from fuzz.runner import Runner
from tests.quality.helpers import Ran, campaign

X = TensorSpec((3,))
LONG = TensorSpec((6,))
SUM = Call("all_reduce", ("x",), ("x",), reduce_op="sum", region=0)


def program(*calls: Call, world: int = 2, groups: tuple[Group, ...] = (), **tensors: TensorSpec) -> Case:
    made = tuple(Tensor(name, spec) for name, spec in tensors.items())
    return Case("gloo", World(world, groups), made, calls)


def out(spec: TensorSpec) -> TensorSpec:
    return replace(spec, payload="poison")


def second(call: Call) -> Call:
    """The same call on other tensors."""
    inputs, outputs = (tuple(f"{name}_2" for name in names) for names in (call.inputs, call.outputs))
    return replace(call, inputs=inputs, outputs=outputs)


GATHER = Call("all_gather_into_tensor", ("x",), ("y",), region=0)
SCATTER = Call("reduce_scatter_tensor", ("y",), ("x",), reduce_op="max", region=0)
SEND = Call("send_recv", ("x",), ("y",), root=0, peer=1, region=0)

RIGHT = {
    "all_reduce": program(SUM, second(SUM), x=X, x_2=LONG),
    "asynchronous": program(*(replace(call, async_op=True) for call in (SUM, second(SUM))), x=X, x_2=LONG),
    "in a permuted group, one rank late": program(
        replace(SUM, group="g0", late=1),
        replace(second(SUM), group="g0"),
        world=3,
        groups=(Group("g0", (2, 0)),),
        x=X,
        x_2=LONG,
    ),
    "all_gather_into_tensor": program(GATHER, second(GATHER), x=X, y=out(LONG), x_2=LONG, y_2=out(TensorSpec((12,)))),
    "reduce_scatter_tensor": program(SCATTER, second(SCATTER), y=LONG, x=out(X), y_2=LONG, x_2=out(X)),
    "send_recv, both ways": program(
        SEND, replace(second(SEND), root=1, peer=0), world=3, x=X, y=out(X), x_2=LONG, y_2=out(LONG)
    ),
    "a result of the region is read after it": program(
        SUM, second(SUM), replace(GATHER, region=None), x=X, x_2=X, y=out(LONG)
    ),
}


@pytest.mark.parametrize("name", RIGHT)
def test_a_right_region(runner: Runner, name: str) -> None:
    outcome = runner.run(RIGHT[name])
    assert (outcome.judgement.failures, outcome.judgement.lost, outcome.judgement.refused) == ([], "", False)
    assert any("in a region" in route for route in outcome.observations[0].routes)


def test_a_view_is_refused_wherever_it_stands_in_a_batch(runner: Runner) -> None:
    """The calls of a region raise together: that the last one has no view is no reason to call it a bug."""
    step = replace(X, layout=replace(X.layout, strides=(2,)))
    case = program(SEND, replace(second(SEND), root=1, peer=0), x=step, y=out(step), x_2=X, y_2=out(X))
    judgement = runner.run(case).judgement
    assert (judgement.failures, judgement.refused) == ([], True)


@pytest.mark.parametrize(
    ("case", "says"),
    [
        (lambda: program(SUM, SUM, x=X), "x is in use by program.0. until the end of the region"),
        (lambda: program(SUM, replace(second(SUM), reduce_op="max"), x=X, x_2=X), "agree in all"),
        (lambda: program(SUM, second(replace(SUM, region=1)), replace(SUM, region=0), x=X, x_2=X), "has ended"),
        (lambda: program(replace(SUM, async_op=True, wait=1), second(SUM), x=X, x_2=X), "at its end"),
    ],
)
def test_what_is_no_region(case, says: str) -> None:
    with pytest.raises(CaseError, match=says):
        check(case())


def test_a_library_without_regions_is_asked_for_none(runner: Runner) -> None:
    broadcast = Call("broadcast", ("x",), ("x",), root=0, region=0)
    with pytest.raises(CaseError, match=r"gloo has all_reduce, .* in regions"):
        runner.run(program(broadcast, x=X))


def test_results_of_a_region_that_are_swapped(runner: Runner) -> None:
    case = program(SUM, second(SUM), x=X, x_2=X)
    failures = runner.run(replace(case, fault="region-swapped")).judgement.failures
    assert [(failure.call, failure.kind) for failure in failures] == [(0, "wrong result"), (1, "wrong result")]
    assert "The result did not survive call 1: it holds what that one gives" in failures[0].message
    assert "Stale: it holds what call 0 left in x" in failures[1].message


def in_regions(ran: Ran) -> list[list[str]]:
    """Minimal cases that need a region: what gloo gets wrong by itself is wrong without one."""
    found = [finding.case for finding in ran.findings]
    return [describe(case) for case in found if any(call.region is not None for call in case.program)]


def test_swapped_results_are_found_and_shrunk(runner: Runner) -> None:
    ran = campaign(
        runner, fault="region-swapped", examples=300, ops=("all_reduce",), layouts="contiguous", memory=1 << 20
    )
    assert in_regions(ran) == [
        [
            "gloo, 2 ranks, fault region-swapped",
            "x: float32[1], index data",
            "x_2: float32[1], index data",
            "all_reduce(x, reduce_op=sum), in region 1",
            "all_reduce(x_2, reduce_op=sum), in region 1",
        ]
    ]


def test_right_regions_are_clean(runner: Runner) -> None:
    ops = ("all_reduce", "all_gather_into_tensor", "reduce_scatter_tensor", "send_recv")
    assert in_regions(campaign(runner, worlds=(2, 3), examples=100, ops=ops, memory=1 << 20)) == []
