"""A case file is untrusted input: right ones come back, wrong ones are refused in one line that says what and where."""

from __future__ import annotations

import json

import pytest

from corpus.case import Call, Case, CaseError, Group, Layout, Tensor, TensorSpec, World
from corpus.codec import MAX_TEXT, digest, dumps, loads, to_dict


def a_case() -> Case:
    strided = TensorSpec((2, 3), "bfloat16", Layout((6, 2), before=1, after=3), payload="wide")
    return Case(
        "gloo",
        World(3, (Group("g0", (0, 2)),)),
        (
            Tensor("x", strided, ((2, TensorSpec((2, 3), "bfloat16", payload="wide")),)),
            Tensor("y", TensorSpec((4,), payload="index")),
            Tensor("out", TensorSpec((4,), payload="poison")),
        ),
        (
            Call("all_reduce", ("x",), ("x",), group="g0", reduce_op="avg", async_op=True),
            Call("all_to_all_single", ("y",), ("out",), splits=((4, 0, 0), (0, 4, 0), (0, 0, 4))),
        ),
        flags=(("A", "1"), ("B", "")),
        seed=7,
    )


def changed(**changes: object) -> str:
    return json.dumps({**to_dict(a_case()), **changes})


def test_a_case_survives_json() -> None:
    assert loads(dumps(a_case())) == a_case()


def test_indented_text_is_the_same_case() -> None:
    assert loads(dumps(a_case(), indent=1)) == a_case()


def test_the_text_of_a_case_is_stable() -> None:
    # A digest names a case in reports and in bug trackers: it must not change by accident.
    assert digest(a_case()) == "e537dd71ec08d8f2"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "not JSON"),
        ("{", "not JSON"),
        (dumps(a_case())[:-20], "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("null", "an object, not NoneType"),
        ("[]", "an object, not list"),
        ("{}", '"cclfuzz" must be 1'),
        ('{"cclfuzz": true}', '"cclfuzz" must be 1'),
        (changed(cclfuzz=2), "not 2"),
        (changed(surprise=1), "unknown field 'surprise'"),
        (changed(world={"size": 2, "os": "rm"}), "case.world: unknown field 'os'"),
        (changed(world={"size": 0}), "world size: an integer from 1 to 64, not 0"),
        (changed(world={"size": 10**9}), "world size: an integer from 1 to 64"),
        (changed(world={"size": "3"}), "case.world.size: int, not '3'"),
        (changed(world={"size": True}), "case.world.size: int, not True"),
        (changed(world=3), "case.world: an object, not 3"),
        (changed(seed=-1), "seed: an integer from 0"),
        (changed(seed=1.5), "case.seed: int, not 1.5"),
        (changed(mode="quantum"), "mode: one of eager, compiled, cuda_graph"),
        (changed(backend=""), "backend: a name or a path"),
        (changed(program=[]), "program: 1 to 64 calls, not 0"),
        (changed(program=[{"op": "all_reduce"}]), "all_reduce: needs a reduce_op"),
        (changed(program=[{"op": "eval"}]), "op: one of"),
        (changed(program=[{"op": "barrier", "group": "nobody"}]), "group 'nobody': no such group"),
        (changed(tensors=[]), "tensor 'x' is not defined"),
        (changed(tensors=[{"name": "x"}]), "case.tensors[0]: field 'spec' is missing"),
        (changed(tensors=[{"name": "__import__('os')", "spec": {"shape": [1]}}]), "a name is a letter"),
        (changed(tensors=[{"name": "x", "spec": {"shape": [-1]}}]), "shape: extent"),
        (changed(tensors=[{"name": "x", "spec": {"shape": [1] * 9}}]), "at most 8 dimensions"),
        (changed(tensors=[{"name": "x", "spec": {"shape": 3}}]), "a list of at most 4096"),
        (changed(tensors=[{"name": "x", "spec": {"shape": [1], "dtype": "float37"}}]), "dtype: one of"),
        (changed(tensors=[{"name": "x", "spec": {"shape": [1], "payload": "ones"}}]), "payload: one of"),
        (changed(tensors=[{"name": "x", "spec": {"shape": [0, 1 << 30, 1 << 30]}}]), "more than 2**40 elements"),
        (
            changed(world={"size": 2, "groups": [{"name": f"g{i}", "ranks": [0]} for i in range(65)]}),
            "at most 64 groups",
        ),
        (
            changed(program=[{"op": "all_reduce", "reduce_op": "premul_sum", "factor": 10**400}]),
            "case.program[0].factor: float",
        ),
        (
            changed(program=[{"op": "all_reduce", "reduce_op": "premul_sum", "factor": 0}]).replace(
                '"factor": 0', '"factor": 1e999'
            ),
            "factor is a finite number",
        ),
        (changed(flags=[["B", "1"], ["A", "1"]]), "flags: must be sorted"),
        (changed(flags=[["A", "a\0b"]]), "flag A"),
        (changed(flags=[["A"]]), "a list of 2, not 1"),
        (changed(seed=0).replace('"seed": 0', '"seed": NaN'), "NaN is not a number here"),
    ],
)
def test_a_wrong_case_is_refused_in_one_line(text: str, says: str) -> None:
    with pytest.raises(CaseError) as caught:
        loads(text)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400


def test_a_huge_text_is_not_parsed() -> None:
    with pytest.raises(CaseError, match="characters, more than"):
        loads(" " * (MAX_TEXT + 1))


def one_call(spec: TensorSpec) -> Case:
    return Case("gloo", World(2), (Tensor("x", spec),), (Call("all_reduce", ("x",), ("x",), reduce_op="sum"),))


def test_a_case_over_the_memory_budget_is_refused() -> None:
    text = dumps(one_call(TensorSpec((1 << 28,))))
    with pytest.raises(CaseError, match="needs 1073741824 bytes a rank, over the budget of 1073741823"):
        loads(text, memory=(1 << 30) - 1)
    assert loads(text, memory=1 << 30).memory() == 1 << 30


def test_memory_counts_the_storage_and_not_the_view() -> None:
    sparse = one_call(TensorSpec((2,), layout=Layout((1 << 30,))))
    with pytest.raises(CaseError, match="over the budget"):
        loads(dumps(sparse))
