"""Bugs are told apart by their traits: what has one name, and when one bug explains another failure."""

from __future__ import annotations

from dataclasses import replace

import pytest

from corpus.case import Call, Case, Data, Group, Layout, Relation, Tensor, TensorSpec, World
from corpus.meaning import check
from corpus.traits import key, traits
from fuzz.backends.gloo import CONTRACT
from fuzz.finding import Finding, from_json, to_json
from fuzz.variations import Reach, Variation, plainer, variations

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
    # A sum of bool is not in gloo's contract, so it is no plainer than the maximum.
    assert {variation.trait for variation in plainer(case, 0, CONTRACT)} == {"dtype", "input layout", "payload"}


def test_making_one_layout_plain_keeps_the_other_rank_s() -> None:
    spec = TensorSpec((3,), layout=Layout(neg=True))
    tensor = Tensor("x", spec, ((1, TensorSpec((3,), layout=STRIDED)),))
    case = replace(case_of(), tensors=(tensor,))
    (variation,) = [one for one in plainer(case, 0, CONTRACT) if one.trait == "input layout"]
    assert traits(variation.case, 0)["input layout"] == "strided"


THREE = World(3)


def chain(*calls: Call, world: World = THREE, **tensors: Tensor | TensorSpec) -> Case:
    made = tuple(
        replace(each, name=name) if isinstance(each, Tensor) else Tensor(name, each) for name, each in tensors.items()
    )
    case = Case("gloo", world, made, calls)
    check(case)
    return case


X = TensorSpec((2,))
POISON = TensorSpec((2,), payload="poison")
SUM = Call("all_reduce", ("x",), ("x",), reduce_op="sum")


def values(case: Case, trait: str, index: int = 0) -> list[str]:
    return [variation.value for variation in variations(case, index, CONTRACT, 1 << 20) if variation.trait == trait]


def plain(case: Case, trait: str, index: int = 0) -> list[Variation]:
    return [variation for variation in plainer(case, index, CONTRACT) if variation.trait == trait]


def test_a_chain_has_one_dtype() -> None:
    case = chain(SUM, Call("copy", ("x",), ("y",)), Call("broadcast", ("y",), ("y",), root=0), x=X, y=POISON)
    for index in (0, 2):
        assert "int32" in values(case, "dtype", index)
    changed = next(v.case for v in variations(case, 2, CONTRACT, 1 << 20) if v.value == "int32")
    assert {spec.dtype for _, spec in changed.specs()} == {"int32"}


def test_a_neighbour_that_would_be_illegal_is_dropped() -> None:
    """Of sums that are not exact there is not one legal value for the second call to read."""
    case = chain(SUM, SUM, x=X)
    assert "exact" in values(case, "payload")
    assert "wide" not in values(case, "payload")
    assert "avg" not in values(case, "reduce op")
    assert "avg" in values(case, "reduce op", 1)


def test_data_of_another_tensor_go_with_it() -> None:
    other = replace(SUM, inputs=("y",), outputs=("y",))
    case = chain(SUM, other, x=X, y=Tensor("y", X, data=Data("x")))
    assert {"int32", "wide"} <= {*values(case, "dtype"), *values(case, "payload")}
    assert {"int32", "wide"} <= {*values(case, "dtype", 1), *values(case, "payload", 1)}
    (own,) = plain(case, "data")
    assert own.case.tensor("y").data is None


@pytest.mark.parametrize("index", [0, 1])
def test_an_illegal_case_has_no_neighbours(index: int) -> None:
    case = replace(case_of(), program=(SUM, SUM), illegal="count", programs=((1, (SUM,)),))
    check(case)
    assert list(variations(case, index, CONTRACT, 1 << 20)) == []


def test_relations_that_do_not_matter_can_go() -> None:
    other = replace(SUM, inputs=("y",), outputs=("y",))
    related = (Relation("repeat", ("x",), ("y",)), Relation("prefix", ("y",), ("x",)))
    case = replace(chain(SUM, other, x=X, y=Tensor("y", X, data=Data("x"))), relations=related)
    assert [one.case.relations for one in plain(case, "relations")] == [related[1:], related[:1]]


def test_a_work_can_be_waited_for_at_once_and_a_rank_be_on_time() -> None:
    flying = replace(SUM, async_op=True, wait=1, late=2)
    case = chain(flying, replace(SUM, inputs=("y",), outputs=("y",)), x=X, y=X)
    waits = plain(case, "wait")
    assert {(one.case.program[0].async_op, one.case.program[0].wait) for one in waits} == {(False, None), (True, None)}
    assert [one.case.program[0].late for one in plain(case, "late")] == [None]


def moved(case: Case, value: str) -> Case:
    (found,) = [one.case for one in plain(case, "group") if one.value == value]
    return found


def test_a_permuted_group_can_be_in_order() -> None:
    group = Group("g0", (2, 0))
    call = Call("broadcast", ("x",), ("x",), group="g0", root=0, late=1)
    case = moved(chain(call, world=World(3, (group,)), x=X), "in order")
    assert case.world.groups == (Group("g0", (0, 2)),)
    assert case.program == (replace(call, root=1, late=0),)


def test_a_twin_group_can_be_the_same_group() -> None:
    groups = (Group("g0", (0, 2)), Group("g1", (0, 2)))
    twin = replace(SUM, inputs=("y",), outputs=("y",), group="g1")
    case = moved(chain(replace(SUM, group="g0"), twin, world=World(3, groups), x=X, y=X), "another's")
    assert case.world.groups == groups[:1]
    assert [call.group for call in case.program] == ["g0", "g0"]


def test_a_group_of_all_ranks_can_be_the_world() -> None:
    splits = ((1, 2, 0), (0, 1, 0), (0, 0, 1))
    exchange = Call("all_to_all_single", ("x",), ("y",), group="g0", splits=splits)
    x = Tensor("x", TensorSpec((3, 1)), ((0, TensorSpec((1, 1))), (1, TensorSpec((1, 1)))))
    y = Tensor("y", TensorSpec((1, 1), payload="poison"), ((0, TensorSpec((3, 1), payload="poison")),))
    case = chain(exchange, world=World(3, (Group("g0", (2, 0, 1)),)), x=x, y=y)
    turned = moved(case, "world")
    assert turned.world.groups == ()
    assert turned.program[0].splits == ((1, 0, 0), (0, 1, 0), (2, 0, 1))
