"""What relations find in a released library, and that they are silent where they hold."""

from __future__ import annotations

from dataclasses import replace

import pytest

from corpus.case import Call, Case, Data, Relation, Tensor, TensorSpec, World
from corpus.contract import Contract
from fuzz.runner import Runner
from strategies.cases import cases
from strategies.relations import RELATIONS
from tests.quality.helpers import campaign
from tests.quality.test_gloo import released
from tests.strategies.helpers import draws, gloo_space


@released
@pytest.mark.parametrize("reduce_op", ["max", "min"])
def test_gloo_keeps_a_nan_by_position(runner: Runner, reduce_op: str) -> None:
    """MAX and MIN keep the NaN or the number, whichever rank has it: legal each, and not the same for other ranks."""
    x = TensorSpec((64,), payload="special")
    call = Call("all_reduce", ("x",), ("x",), reduce_op=reduce_op)
    case = Case(
        "gloo",
        World(2),
        (Tensor("x", x), Tensor("x_2", x, data=Data("x", shift=1))),
        (call, replace(call, inputs=("x_2",), outputs=("x_2",))),
        relations=(Relation("permutation", ("x_2",), ("x",)),),
    )
    (failure,) = runner.run(case).judgement.failures
    assert (failure.oracle, failure.kind, failure.bug) == ("relations", "permutation differs", False)
    assert "nan" in failure.observed + failure.legal
    exact = replace(case, tensors=tuple(replace(one, spec=replace(x, payload="exact")) for one in case.tensors))
    assert runner.run(exact).judgement.failures == []


@released
def test_a_campaign_finds_it(runner: Runner) -> None:
    ran = campaign(runner, ops=("all_reduce",), dtypes=("float32",), layouts="contiguous", examples=1500)
    assert [finding.kinds for finding in ran.findings] == [frozenset({"permutation differs"})]
    assert ran.findings[0].key.startswith("gloo-all_reduce-permutation-differs-max-special")


def _drawn(contract: Contract) -> list[Case]:
    """Cases with relations that gloo runs and where the order of ranks cannot matter, some of each relation."""
    ops = (
        "all_reduce",
        "all_gather_into_tensor",
        "all_gather",
        "reduce_scatter_tensor",
        "reduce_scatter",
        "all_to_all_single",
        "gather",
    )
    space = replace(gloo_space, contract=contract, ops=ops, layouts="contiguous", memory=1 << 20)
    found: dict[str, list[Case]] = {name: [] for name in RELATIONS}
    for case in draws(cases(replace(space, dtypes=("float32", "int32"), reduce_ops=("sum", "max"))), examples=4000):
        for relation in case.relations:
            if "special" not in {tensor.spec.payload for tensor in case.tensors}:
                found[relation.name].append(case)
    found.pop("view = contiguous copy")
    assert all(found.values()), found
    return [case for some in found.values() for case in some[:5]]


def test_relations_hold_on_gloo(runner: Runner) -> None:
    told = {
        failure.kind: case
        for case in _drawn(runner.backend("gloo").contract({}))
        for failure in runner.run(case).judgement.failures
        if failure.oracle == "relations"
    }
    assert told == {}
