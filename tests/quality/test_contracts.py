"""Every line of a contract is looked at: the smallest breach of it is reported, by the oracle that it is for.

A line that cannot be broken on a CPU, because it promises nothing or because the library breaks it already, stands in
`UNBROKEN` with the reason.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import pytest

from corpus.case import Call, Case, Group, Tensor, TensorSpec, World
from corpus.contract import Contract
from fuzz.backends import load
from fuzz.runner import Runner

X = TensorSpec((6,))
OUT = replace(X, payload="poison")


def lines(contract: Contract) -> set[str]:
    """The lines of a contract: its collectives, and everything that it says of all of them."""
    return {f"op {op}" for op in contract.ops} | {
        field.name for field in fields(contract) if field.name not in ("backend", "ops")
    }


@dataclass(frozen=True)
class Mutant:
    """A breach of one line: the fault, a case that shows it, and what is reported."""

    fault: str
    case: Case
    oracle: str
    kind: str


def case(*calls: Call, world: int = 2, groups: tuple[Group, ...] = (), **tensors: TensorSpec) -> Case:
    made = tuple(Tensor(name, spec) for name, spec in tensors.items())
    return Case("gloo", World(world, groups), made, calls)


ALL_REDUCE = Call("all_reduce", ("x",), ("x",), reduce_op="sum")
BIG = replace(X, shape=(12,))
BIG_OUT = replace(OUT, shape=(12,))
WRONG = ("numeric", "wrong result")


def wrong(*calls: Call, **tensors: TensorSpec) -> Mutant:
    return Mutant(f"wrong-{calls[0].op}", case(*calls, **tensors), *WRONG)


GLOO = {
    "op all_reduce": wrong(ALL_REDUCE, x=X),
    "op broadcast": wrong(Call("broadcast", ("x",), ("x",), root=0), x=X),
    "op reduce": wrong(Call("reduce", ("x",), ("x",), root=0, reduce_op="sum"), x=X),
    "op all_gather_into_tensor": wrong(Call("all_gather_into_tensor", ("x",), ("y",)), x=X, y=BIG_OUT),
    "op all_gather": wrong(Call("all_gather", ("x",), ("y0", "y1")), x=X, y0=OUT, y1=OUT),
    "op reduce_scatter_tensor": wrong(Call("reduce_scatter_tensor", ("x",), ("y",), reduce_op="sum"), x=BIG, y=OUT),
    "op reduce_scatter": wrong(Call("reduce_scatter", ("x0", "x1"), ("y",), reduce_op="sum"), x0=X, x1=X, y=OUT),
    "op gather": wrong(Call("gather", ("x",), ("y0", "y1"), root=1), x=X, y0=OUT, y1=OUT),
    "op scatter": wrong(Call("scatter", ("x0", "x1"), ("y",), root=0), x0=X, x1=X, y=OUT),
    "op all_to_all_single": wrong(Call("all_to_all_single", ("x",), ("y",)), x=X, y=OUT),
    "op all_to_all": wrong(Call("all_to_all", ("x0", "x1"), ("y0", "y1")), x0=X, x1=X, y0=OUT, y1=OUT),
    "op send_recv": wrong(Call("send_recv", ("x",), ("y",), root=0, peer=1), x=X, y=OUT),
    "op barrier": Mutant("barrier-does-nothing", case(Call("barrier", late=1)), "barrier", "barrier left early"),
    "agreement": Mutant(
        "own-rank-first",
        case(ALL_REDUCE, world=3, x=TensorSpec((64,), payload="wide")),
        "agreement",
        "ranks disagree",
    ),
    "accumulation": Mutant(
        "wide-sum", case(ALL_REDUCE, world=3, x=TensorSpec((4096,), "bfloat16", payload="wide")), *WRONG
    ),
    "average": Mutant(
        "avg-by-reciprocal",
        case(replace(ALL_REDUCE, reduce_op="avg"), world=3, x=TensorSpec((64,), "float16", payload="wide")),
        *WRONG,
    ),
    "subnormals": Mutant(
        "flushes-subnormals",
        case(replace(ALL_REDUCE, reduce_op="max"), x=TensorSpec((256,), payload="special")),
        *WRONG,
    ),
    "bool_reduction": Mutant(
        "bool-byte", case(replace(ALL_REDUCE, reduce_op="product"), x=TensorSpec((6,), "bool")), *WRONG
    ),
    "regions": Mutant(
        "region-swapped",
        case(
            replace(ALL_REDUCE, region=0), replace(ALL_REDUCE, inputs=("x_2",), outputs=("x_2",), region=0), x=X, x_2=X
        ),
        *WRONG,
    ),
    "permuted_groups": Mutant(
        "sorted-group",
        case(
            Call("all_gather_into_tensor", ("x",), ("y",), group="g0"),
            groups=(Group("g0", (1, 0)),),
            x=X,
            y=BIG_OUT,
        ),
        *WRONG,
    ),
}
"""By line of gloo's contract."""

DETAILS = {
    "dtypes": Mutant("refuses-float64", case(ALL_REDUCE, x=replace(X, dtype="float64")), "errors", "refused"),
    "async_op": Mutant("wait-returns-early", case(replace(ALL_REDUCE, async_op=True), x=X), *WRONG),
    "uneven": Mutant(
        "wrong-splits",
        case(Call("all_to_all_single", ("x",), ("y",), splits=((2, 4), (4, 2))), x=X, y=OUT),
        *WRONG,
    ),
    "min_world": Mutant(
        "alone-avg-tail",
        case(Call("reduce_scatter_tensor", ("x",), ("y",), reduce_op="avg"), world=1, x=X, y=OUT),
        *WRONG,
    ),
}
"""By field of `OpContract`, for those that a collective's own mutant does not break."""

UNBROKEN = {
    "views": "gloo itself breaks it: TROPHIES.md",
    "nan_extremum": "promises nothing; tests/quality/test_relations.py shows that it is told as a divergence",
    "reduce_others": "promises nothing; tests/oracles judge a contract that does",
    "in_place_from": "no call of gloo's is out of place; tests/quality/test_report_a.py breaks vllm-model's",
    "illegal": "gloo keeps it or breaks it itself: tests/quality/test_illegal.py",
}


def test_every_line_has_its_mutant() -> None:
    assert lines(load("gloo").contract({})) == set(GLOO) | set(UNBROKEN)


@pytest.mark.parametrize("line", [*GLOO, *DETAILS])
def test_a_breach_is_reported(runner: Runner, line: str) -> None:
    mutant = (GLOO | DETAILS)[line]
    assert not runner.run(mutant.case).judgement.failures
    broken = runner.run(replace(mutant.case, fault=mutant.fault)).judgement
    # A region has two results that are wrong.
    assert {(failure.oracle, failure.kind) for failure in broken.failures} == {(mutant.oracle, mutant.kind)}
