"""Statistical power: what a bug can depend on turns up within a round, whatever the seed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from corpus.case import OPS, REDUCE_OPS, Case
from corpus.dtypes import DTYPES
from corpus.thresholds import FAMOUS, Threshold
from strategies.cases import cases
from tests.strategies.helpers import draws, find_any, fresh_space, gloo_space, specs

SEEDS = range(2)
T = FAMOUS.size


def _calls(op):
    return lambda case: any(call.op == op for call in case.program)


@pytest.fixture(scope="module", params=SEEDS)
def round_of_gloo(request) -> list[Case]:
    return draws(cases(gloo_space), key=request.param, examples=1000)


def test_every_op_dtype_reduce_op_payload_and_world(round_of_gloo):
    calls = [call for case in round_of_gloo for call in case.program]
    everything = [spec for case in round_of_gloo for spec in specs(case)]
    assert {call.op for call in calls} == set(OPS)
    assert {call.reduce_op for call in calls} == {None, *REDUCE_OPS}
    assert {spec.dtype for spec in everything} == set(DTYPES)
    assert {spec.payload for spec in everything} == {"index", "exact", "wide", "special", "sparse", "poison"}
    assert {case.world.size for case in round_of_gloo} == {2, 3, 4}
    assert {len(spec.shape) for spec in everything} >= {0, 1, 2, 3, 4}
    assert {len(case.program) for case in round_of_gloo} == {1, 2, 3}
    assert {True, False} == {call.async_op for call in calls}


def test_every_kind_of_view(round_of_gloo):
    everything = {spec for case in round_of_gloo for spec in specs(case) if spec.numel > 1}
    layouts = {
        "conj": any(spec.layout.conj for spec in everything),
        "neg": any(spec.layout.neg for spec in everything),
        "step": any(spec.strides == (2,) for spec in everything),
        "column": any(spec.strides and min(spec.strides) == 129 for spec in everything),
        "rows": any(spec.strides[-1:] == (1,) and not spec.is_contiguous for spec in everything),
        "transposed": any(
            len(spec.shape) > 1 and spec.strides[0] == 1 and min(spec.shape) > 1 and not spec.overlaps
            for spec in everything
        ),
        "expanded": any(0 in spec.strides for spec in everything),
        "windows": any(len(spec.shape) > 1 and set(spec.strides) == {1} for spec in everything),
        "singleton": any(spec.is_contiguous and spec.layout.strides for spec in everything),
        "unaligned": any(spec.layout.before % 2 for spec in everything),
        "guarded": any(spec.layout.before and spec.layout.after for spec in everything),
    }
    assert [kind for kind, found in layouts.items() if not found] == []


def test_every_kind_of_program(round_of_gloo):
    programs = {
        "sub-group": any(case.world.groups for case in round_of_gloo),
        "another layout on another rank": any(
            spec.layout != tensor.spec.layout
            for case in round_of_gloo
            for tensor in case.tensors
            for _, spec in tensor.overrides
        ),
        "another shape on another rank": any(
            spec.shape != tensor.spec.shape
            for case in round_of_gloo
            for tensor in case.tensors
            for _, spec in tensor.overrides
        ),
        "splits": any(call.splits for case in round_of_gloo for call in case.program),
        "empty": any(spec.numel == 0 for case in round_of_gloo for spec in specs(case)),
        "a root that is not 0": any(call.root for case in round_of_gloo for call in case.program),
    }
    assert [kind for kind, found in programs.items() if not found] == []


def test_one_input_for_two_calls():
    space = replace(gloo_space, ops=("all_gather", "gather", "send_recv"))
    find_any(cases(space), lambda case: len({call.inputs for call in case.program}) < len(case.program))


def test_two_groups_in_one_program():
    find_any(cases(replace(gloo_space, worlds=(4,))), lambda case: len(case.world.groups) > 1, examples=1000)


@pytest.mark.parametrize("size", [T - 16, T - 1, T, T + 1, T + 16])
@pytest.mark.parametrize("key", SEEDS)
def test_the_sizes_at_a_threshold(size, key):
    space = replace(fresh_space, ops=("all_reduce",))
    find_any(cases(space), lambda case: any(spec.numel == size for spec in specs(case)), key=key)


@pytest.mark.parametrize("op", ["all_gather_into_tensor", "all_gather", "all_to_all", "all_to_all_single"])
def test_a_threshold_among_tensors_for_every_rank(op):
    find_any(cases(replace(gloo_space, ops=(op,))), lambda case: any(spec.numel == T for spec in specs(case)))


def test_a_threshold_in_bytes_of_one_dtype():
    space = replace(fresh_space, thresholds=(Threshold(3_000_000, "bytes", "a test"),))
    for dtype in ("float32", "bfloat16"):
        exact = 3_000_000 // DTYPES[dtype].itemsize
        find_any(
            cases(space),
            lambda case, dtype=dtype, exact=exact: any((s.numel, s.dtype) == (exact, dtype) for s in specs(case)),
            examples=1000,
        )


@pytest.mark.parametrize("key", SEEDS)
def test_tokens_and_hidden_at_a_threshold(key):
    space = replace(fresh_space, ops=("all_reduce",))
    find_any(
        cases(space),
        lambda case: any(spec.numel >= T and len(spec.shape) == 2 and spec.shape[1] > 500 for spec in specs(case)),
        key=key,
    )


def test_most_cases_are_small():
    drawn = draws(cases(gloo_space), examples=600)
    large = [case for case in drawn if case.memory() > 4 << 20]
    assert 0.1 < len(large) / len(drawn) < 0.35
    assert sum(case.memory() for case in drawn) / len(drawn) < 25 << 20


def test_views_are_frequent_and_not_the_rule():
    drawn = draws(cases(replace(gloo_space, max_calls=1)), examples=600)
    views = [case for case in drawn if any(not s.is_contiguous or s.layout.conj or s.layout.neg for s in specs(case))]
    assert 0.2 < len(views) / len(drawn) < 0.5
