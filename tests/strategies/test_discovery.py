"""Statistical power: what a bug can depend on turns up within a round, whatever the seed."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from corpus.case import LOCAL_OPS, OPS, REDUCE_OPS, Case
from corpus.contract import Promise
from corpus.dtypes import DTYPES
from corpus.thresholds import FAMOUS, Threshold
from strategies.cases import cases
from strategies.relations import RELATIONS
from tests.strategies.helpers import GLOO, draws, find_any, fresh_space, gloo_space, specs

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
    assert {call.op for call in calls} - set(LOCAL_OPS) == set(OPS)
    assert {call.reduce_op for call in calls} == {None, *REDUCE_OPS}
    assert {spec.dtype for spec in everything} == set(DTYPES)
    assert {spec.payload for spec in everything} == {"index", "exact", "wide", "special", "sparse", "poison"}
    assert {case.world.size for case in round_of_gloo} == {2, 3, 4}
    assert {len(spec.shape) for spec in everything} >= {0, 1, 2, 3, 4}
    assert {1, 2, 3, 4, 5} <= {len(case.program) for case in round_of_gloo}
    assert {True, False} == {call.async_op for call in calls}


@pytest.mark.parametrize("op", LOCAL_OPS)
def test_every_local_computation(op):
    find_any(cases(gloo_space), lambda case: any(call.op == op for call in case.program), examples=4000)


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
        "a group in another order": any(
            list(group.ranks) != sorted(group.ranks) for case in round_of_gloo for group in case.world.groups
        ),
        "a late rank": any(call.late is not None for case in round_of_gloo for call in case.program),
        "a relation": any(case.relations for case in round_of_gloo),
    }
    assert [kind for kind, found in programs.items() if not found] == []


def _reads(case: Case) -> bool:
    """Whether a collective reads what another one wrote."""
    written: set[str] = set()
    for call in case.program:
        if not call.local and written & {*call.inputs} and call.inputs != call.outputs:
            return True
        written |= {*call.outputs}
    return False


def _reduces_again(case: Case) -> bool:
    calls = [call.inputs for call in case.program if call.op == "all_reduce"]
    return len(set(calls)) < len(calls)


def _keeps_buffer(case: Case) -> bool:
    outputs = [call.outputs for call in case.program if call.outputs != call.inputs and not call.local]
    return len(set(outputs)) < len(outputs)


def _late_local(case: Case) -> bool:
    """Whether an input is overwritten by a local computation after a collective has read it."""
    read: set[str] = set()
    for call in case.program:
        if call.local and read & {*call.outputs}:
            return True
        read |= {*call.inputs}
    return False


def _reversed_waits(case: Case) -> bool:
    waits = [(index if call.wait is None else call.wait) for index, call in enumerate(case.program) if call.async_op]
    return any(first >= second for first, second in pairwise(waits))


FEATURES = {
    "one input for two calls": lambda case: any(
        {*one.inputs} & {*two.inputs} and one.outputs != two.outputs for one, two in pairwise(case.program)
    ),
    "a result is read": _reads,
    "an in-place result is reduced again": _reduces_again,
    "a buffer is passed again": _keeps_buffer,
    "an input is overwritten after the call": _late_local,
    "a wait after the next call": lambda case: any(call.wait is not None for call in case.program),
    "waits in another order": _reversed_waits,
    "works of two groups at once": lambda case: any(
        one.wait is not None and two.async_op and two.group != one.group
        for place, one in enumerate(case.program)
        for two in case.program[place + 1 : (one.wait or 0) + 1]
    ),
    "two groups of the same ranks": lambda case: (
        len({frozenset(group.ranks) for group in case.world.groups}) < len(case.world.groups)
    ),
    "groups that overlap": lambda case: any(
        0 < len({*one.ranks} & {*two.ranks}) < len({*one.ranks} | {*two.ranks})
        for one in case.world.groups
        for two in case.world.groups
    ),
    "the same call on other data": lambda case: any(
        one.op == two.op
        and one.inputs != two.inputs
        and case.tensor(one.inputs[0]).spec == case.tensor(two.inputs[0]).spec
        for one, two in pairwise(case.program)
        if one.inputs and two.inputs and not case.relations
    ),
}


@pytest.mark.parametrize("feature", FEATURES)
@pytest.mark.parametrize("key", SEEDS)
def test_how_later_calls_go_on(feature, key):
    find_any(cases(gloo_space), FEATURES[feature], key=key, examples=3000)


def test_regions_only_where_the_contract_has_them(round_of_gloo):
    assert not any(call.region is not None for case in round_of_gloo for call in case.program)


@pytest.mark.parametrize("op", ["all_reduce", "send_recv"])
def test_regions(op):
    def wanted(case):
        return op in {call.op for call in case.program if call.region is not None}

    space = replace(gloo_space, contract=replace(GLOO, regions=Promise(("all_reduce", "send_recv"), "a test")))
    find_any(cases(space), wanted, examples=3000)


@pytest.mark.parametrize("key", SEEDS)
def test_a_returned_result_is_reduced_again(key):
    find_any(cases(replace(fresh_space, ops=("all_reduce",))), _reads, key=key, examples=1000)


@pytest.mark.parametrize("name", RELATIONS)
def test_every_relation(name):
    ops = ("all_reduce", "all_gather_into_tensor", "all_gather", "reduce_scatter_tensor", "gather")
    space = replace(gloo_space, ops=ops, dtypes=("float32",))
    find_any(cases(space), lambda case: any(one.name == name for one in case.relations), examples=3000)


def test_most_programs_have_one_call():
    several = [
        sum(len(case.program) > 1 and not case.relations for case in draws(cases(gloo_space), key=key, examples=500))
        for key in range(4)
    ]
    assert 0.08 < sum(several) / 2000 < 0.3


def test_two_groups_in_one_program():
    find_any(cases(replace(gloo_space, worlds=(4,))), lambda case: len(case.world.groups) > 1, examples=1000)


@pytest.mark.parametrize("size", [T - 16, T - 1, T, T + 1, T + 16])
@pytest.mark.parametrize("key", SEEDS)
def test_the_sizes_at_a_threshold(size, key):
    space = replace(fresh_space, ops=("all_reduce",))
    find_any(cases(space), lambda case: any(spec.numel == size for spec in specs(case)), key=key, examples=1000)


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
