"""Illegal programs: every mistake is drawn, is one, and shrinks to the smallest program that has it."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from corpus.case import ILLEGAL, Call, Case, CaseError, Group, Tensor, TensorSpec, World
from corpus.codec import dumps, loads
from corpus.meaning import check
from strategies.cases import cases
from strategies.illegal import illegal_cases
from strategies.space import Space
from tests.strategies.helpers import GLOO, draws, fresh_space, gloo_space, minimal

MISTAKES = tuple(mistake for mistake in ILLEGAL if mistake != "device")
"""Those that a library on CPUs can be given. A tensor is on the wrong device only where there is another."""


@pytest.fixture(scope="module")
def drawn() -> list[Case]:
    return draws(illegal_cases(gloo_space), examples=600)


def test_every_mistake_is_drawn_about_as_often(drawn):
    counts = Counter(case.illegal for case in drawn)
    assert set(counts) == set(MISTAKES)
    assert min(counts.values()) * 5 > max(counts.values())


def test_every_collective_is_drawn_and_only_with_mistakes_that_it_can_have(drawn):
    seen = {(case.illegal, case.program[0].op) for case in drawn}
    assert {op for _, op in seen} == set(GLOO.ops)
    assert {op for known, op in seen if known == "aliased outputs"} == {"all_gather", "gather", "all_to_all"}
    assert {op for known, op in seen if known == "splits"} == {"all_to_all_single"}


def test_every_case_can_be_run_and_is_the_same_from_its_file(drawn):
    # Reading checks it: a mistake that is none is refused there.
    assert [loads(dumps(case)) for case in drawn] == drawn


def test_everything_but_the_mistake_is_plain(drawn):
    assert not any(call.async_op for case in drawn for call in case.program)
    assert all(spec.is_contiguous and spec.payload in ("index", "poison") for case in drawn for _, spec in case.specs())


def test_a_library_that_returns_its_outputs_is_given_mistakes_too():
    found = draws(illegal_cases(fresh_space), examples=100)
    assert {case.illegal for case in found} == {"dtype", "shape", "group", "order", "count", "unsupported dtype"}


def test_a_tensor_is_on_the_wrong_device_where_there_are_gpus():
    space = Space(backend="gloo", contract=GLOO, memory_kind="cuda", worlds=(2,))
    found = [case for case in draws(illegal_cases(space), examples=300) if case.illegal == "device"]
    assert found
    assert all({spec.memory for _, spec in case.specs()} == {"cpu", "cuda"} for case in found)


def test_a_world_of_one_rank_cannot_disagree():
    with pytest.raises(ValueError, match="2 ranks or more"):
        replace(gloo_space, worlds=(1,), illegal=True)
    with pytest.raises(ValueError, match="at least 2 ranks"):
        illegal_cases(replace(gloo_space, worlds=(1,)))


def test_a_space_says_which_programs_are_drawn():
    assert all(case.illegal for case in draws(cases(replace(gloo_space, illegal=True)), examples=20))
    assert not any(case.illegal for case in draws(cases(gloo_space), examples=20))


X = TensorSpec((2,))
SUM = Call("all_reduce", ("x",), ("x",), reduce_op="sum")
SMALLEST = {
    "dtype": Case("gloo", World(2), (Tensor("x", X, ((1, replace(X, dtype="bfloat16")),)),), (SUM,), illegal="dtype"),
    "shape": Case("gloo", World(2), (Tensor("x", X, ((1, replace(X, shape=(3,))),)),), (SUM,), illegal="shape"),
    "reduce op": Case(
        "gloo",
        World(2),
        (Tensor("x", X),),
        (SUM,),
        illegal="reduce op",
        programs=((1, (replace(SUM, reduce_op="avg"),)),),
    ),
    "group": Case(
        "gloo",
        World(2, (Group("twin", (0, 1)),)),
        (Tensor("x", X),),
        (SUM,),
        illegal="group",
        programs=((1, (replace(SUM, group="twin"),)),),
    ),
    "count": Case("gloo", World(2), (Tensor("x", X),), (SUM,), illegal="count", programs=((1, ()),)),
    "unsupported dtype": Case(
        "gloo", World(2), (Tensor("x", replace(X, dtype="float8_e8m0fnu")),), (SUM,), illegal="unsupported dtype"
    ),
}


@pytest.mark.parametrize("mistake", SMALLEST)
def test_a_mistake_in_any_call_shrinks_to_the_smallest_all_reduce(mistake):
    found, _ = minimal(illegal_cases(gloo_space), lambda case: case.illegal == mistake, examples=400)
    assert found == SMALLEST[mistake]


@pytest.mark.parametrize("mistake", sorted(set(MISTAKES) - set(SMALLEST)))
def test_a_mistake_of_some_calls_shrinks_to_two_ranks_and_plain_tensors(mistake):
    found, _ = minimal(illegal_cases(gloo_space), lambda case: case.illegal == mistake, examples=400)
    assert found.world == World(2)
    assert {spec.dtype for _, spec in found.specs()} == {"float32"}
    assert max(spec.numel for _, spec in found.specs()) <= 4


@pytest.mark.parametrize(
    ("case", "says"),
    [
        (replace(SMALLEST["count"], programs=()), "agree about count"),
        (replace(SMALLEST["count"], programs=((1, (SUM,)),)), "agree about count"),
        (replace(SMALLEST["dtype"], tensors=(Tensor("x", X),)), "nothing is wrong with the program's dtype"),
        (replace(SMALLEST["dtype"], programs=((1, ()),)), "run the same program"),
        (replace(SMALLEST["count"], program=(Call("negate", ("x",), ("x",)),)), "no local computations"),
        (replace(SMALLEST["unsupported dtype"], tensors=SMALLEST["shape"].tensors), "has 3 elements, but x takes 2"),
        (
            replace(SMALLEST["count"], tensors=(Tensor("x", replace(X, payload=None)),)),
            "input x has no payload",
        ),
        (
            Case(
                "gloo",
                World(2),
                (Tensor("x", X), Tensor("y", replace(X, payload="poison"))),
                (Call("all_to_all_single", ("x",), ("y",), splits=((1, 1),)),),
                illegal="splits",
            ),
            "a 2 x 2 matrix of counts",
        ),
    ],
)
def test_a_file_that_says_illegal_and_cannot_be_run_as_such_is_refused(case, says):
    with pytest.raises(CaseError, match=says):
        check(case)
