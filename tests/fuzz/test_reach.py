"""Bugs are told apart by their traits: what has one name, and when one bug explains another failure."""

from __future__ import annotations

from dataclasses import replace

import pytest

from corpus.case import Call, Case, Layout, Tensor, TensorSpec, World
from corpus.traits import key, traits
from fuzz.backends.gloo import CONTRACT
from fuzz.finding import Finding, from_json, to_json
from fuzz.variations import Reach, plainer, variations

DENSE = Layout()
STRIDED = Layout((2,))


def case_of(*, size: int = 2, dtype: str = "float32", layout: Layout = DENSE, op: str = "sum", world: int = 2) -> Case:
    call = Call("all_reduce", ("x",), ("x",), reduce_op=op)
    return Case("gloo", World(world), (Tensor("x", TensorSpec((size,), dtype, layout)),), (call,))


def finding_of(case: Case, **passed: tuple[str, ...]) -> Finding:
    failure = {"oracle": "numeric", "kind": "wrong result", "message": "", "call": 0, "verdict": 1}
    reach = Reach({}, {name.replace("_", " "): values for name, values in passed.items()})
    return Finding(key(case, 0, "wrong result"), case, (failure,), frozenset({"wrong result"}), 3, 3, reach)


def test_a_key_names_the_traits_worth_mention() -> None:
    assert key(case_of(), 0, "wrong result") == "gloo-all_reduce-wrong-result"
    assert key(case_of(layout=STRIDED), 0, "wrong result") == "gloo-all_reduce-wrong-result-strided"
    assert key(case_of(dtype="int8", op="max", world=3), 0, "crash") == "gloo-all_reduce-crash-max-signed-3-ranks"
    assert key(case_of(size=0), 0, "crash") == "gloo-all_reduce-crash-empty"


def test_a_key_does_not_change_with_the_size() -> None:
    assert len({key(case_of(size=size), 0, "hang") for size in (1, 7, 4096)}) == 1
    assert len({key(case_of(size=size), 0, "hang") for size in (4097, 1 << 22)}) == 1


@pytest.mark.parametrize(
    ("layout", "name"),
    [
        (Layout(), "contiguous"),
        (Layout(before=1), "offset"),
        (STRIDED, "strided"),
        (Layout(neg=True), "neg"),
        (Layout((2,), neg=True), "neg"),
    ],
)
def test_layouts_have_one_word(layout: Layout, name: str) -> None:
    assert traits(case_of(layout=layout), 0)["input layout"] == name


def test_a_bug_explains_itself_at_another_size_dtype_and_reduce_op() -> None:
    known = finding_of(case_of(layout=STRIDED))
    assert known.explains(case_of(layout=STRIDED, size=9, dtype="int8", op="max"), 0, "wrong result")


def test_a_bug_does_not_explain_another_symptom_layout_or_collective() -> None:
    known = finding_of(case_of(layout=STRIDED))
    assert not known.explains(case_of(layout=STRIDED), 0, "crash")
    assert not known.explains(case_of(), 0, "wrong result")
    assert not known.explains(case_of(layout=Layout(neg=True)), 0, "wrong result")
    other = Case(
        "gloo", World(2), (Tensor("x", TensorSpec((2,), layout=STRIDED)),), (Call("broadcast", ("x",), ("x",), root=0),)
    )
    assert not known.explains(other, 0, "wrong result")


def test_a_bug_does_not_explain_what_was_seen_to_pass() -> None:
    known = finding_of(case_of(op="avg", size=100), reduce_op=("sum",), elements=("50", "99"))
    assert known.explains(case_of(op="avg", size=100), 0, "wrong result")
    assert not known.explains(case_of(op="sum", size=100), 0, "wrong result")
    assert not known.explains(case_of(op="avg", size=99), 0, "wrong result")


def test_a_bug_that_needs_no_layout_explains_every_layout() -> None:
    assert finding_of(case_of()).explains(case_of(layout=STRIDED), 0, "wrong result")


def test_a_widened_bug_explains_the_case_that_widened_it() -> None:
    known = finding_of(case_of(size=100), dtype=("bool",), elements=("50",))
    other = case_of(dtype="bool", op="max", size=20)
    assert not known.explains(other, 0, "wrong result")
    assert known.widened(other, 0, frozenset()).explains(other, 0, "wrong result")


def test_a_finding_survives_json() -> None:
    known = finding_of(case_of(layout=STRIDED), dtype=("bool",)).widened(case_of(dtype="int8"), 0, frozenset({"crash"}))
    assert from_json(to_json(known)) == known


def test_variations_change_one_trait_and_are_legal() -> None:
    case = case_of(layout=STRIDED)
    tried = list(variations(case, 0, CONTRACT, 1 << 20))
    for variation in tried:
        now = traits(variation.case, 0)
        if variation.trait != "elements":
            assert now[variation.trait] == variation.value
    assert {variation.trait for variation in tried} >= {
        "input layout",
        "dtype",
        "reduce op",
        "payload",
        "wait",
        "ranks",
    }
    assert len({variation.case for variation in tried}) == len(tried)


def test_what_does_not_matter_can_be_made_plain() -> None:
    spec = TensorSpec((3,), "bool", Layout((2,)), payload="wide")
    case = replace(case_of(op="max"), tensors=(Tensor("x", spec),))
    assert {variation.trait for variation in plainer(case, 0)} == {"dtype", "input layout", "payload", "reduce op"}


def test_making_one_layout_plain_keeps_the_other_rank_s() -> None:
    spec = TensorSpec((3,), layout=Layout(neg=True))
    tensor = Tensor("x", spec, ((1, TensorSpec((3,), layout=STRIDED)),))
    case = replace(case_of(), tensors=(tensor,))
    (variation,) = [one for one in plainer(case, 0) if one.trait == "input layout"]
    assert traits(variation.case, 0)["input layout"] == "strided"
