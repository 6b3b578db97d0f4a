"""What Hypothesis shrinks to is exactly what a person would have written."""

from __future__ import annotations

from dataclasses import replace

import pytest

from corpus.case import CONTIGUOUS, OPS, Call, Case, Data, Group, Layout, Relation, Tensor, TensorSpec, World
from corpus.contract import Promise
from corpus.flags import Flag, Scope
from strategies.cases import cases
from tests.strategies.helpers import GLOO, fresh_space, gloo_space, minimal, specs

T = 4_194_304


def _all_reduce(spec: TensorSpec, size: int = 2) -> Case:
    return Case("gloo", World(size), (Tensor("x", spec),), (Call("all_reduce", ("x",), ("x",), reduce_op="sum"),))


def _any_spec(wanted):
    return lambda case: any(wanted(spec) for spec in specs(case))


@pytest.mark.parametrize("key", range(5))
def test_anything(key):
    found, _ = minimal(cases(gloo_space), lambda case: True, key=key)
    assert found == _all_reduce(TensorSpec((1,)))


@pytest.mark.parametrize("key", range(10))
def test_a_threshold_in_elements(key):
    found, tried = minimal(cases(gloo_space), _any_spec(lambda spec: spec.numel >= T), key=key)
    assert found == _all_reduce(TensorSpec((T,)))
    assert tried < 100


@pytest.mark.parametrize("key", range(5))
def test_a_threshold_of_an_out_of_place_op(key):
    found, _ = minimal(cases(fresh_space), _any_spec(lambda spec: spec.numel >= T), key=key, examples=300)
    assert found == Case(
        "fresh",
        World(2),
        (Tensor("x", TensorSpec((T,))), Tensor("out", TensorSpec((T,), payload=None))),
        (Call("all_reduce", ("x",), ("out",), reduce_op="sum"),),
    )


@pytest.mark.parametrize("key", range(5))
def test_a_threshold_that_nobody_stated(key):
    found, _ = minimal(cases(gloo_space), _any_spec(lambda spec: spec.numel >= 1_234_567), key=key)
    assert found == _all_reduce(TensorSpec((1_234_567,)))


@pytest.mark.parametrize("key", range(5))
def test_a_threshold_in_bytes(key):
    def wanted(spec):
        return spec.dtype == "bfloat16" and spec.numel * 2 >= 1 << 20

    found, _ = minimal(cases(gloo_space), _any_spec(wanted), key=key)
    assert found == _all_reduce(TensorSpec((1 << 19,), "bfloat16"))


@pytest.mark.parametrize("key", range(5))
def test_a_view(key):
    found, tried = minimal(cases(gloo_space), _any_spec(lambda spec: not spec.is_contiguous), key=key)
    assert found == _all_reduce(TensorSpec((2,), layout=Layout((2,))))
    assert tried < 60


@pytest.mark.parametrize("key", range(5))
def test_a_large_view_on_three_ranks(key):
    found, _ = minimal(
        cases(gloo_space),
        lambda case: case.world.size >= 3 and any(spec.numel > 100 and not spec.is_contiguous for spec in specs(case)),
        key=key,
    )
    assert found == _all_reduce(TensorSpec((101,), layout=Layout((2,))), 3)


@pytest.mark.parametrize("op", OPS)
def test_every_op(op):
    found, _ = minimal(cases(gloo_space), lambda case: any(call.op == op for call in case.program))
    assert found.world == World(2)
    (call,) = found.program
    assert (call.op, call.group, call.async_op, call.splits) == (op, "world", False, None)
    assert call.root in (None, 0)
    assert call.peer in (None, 1)
    assert call.reduce_op in (None, "sum")
    assert found.seed == 0
    for spec in specs(found):
        assert spec.dtype == "float32"
        assert spec.layout == CONTIGUOUS
        assert spec.payload in ("index", "poison")
        assert spec.shape in ((1,), (2,))


def _drawn(case):
    """The collectives of a program that no relation added: of a program with a relation none."""
    return [call for call in case.program if not call.local and not case.relations]


@pytest.mark.parametrize("key", range(2))
def test_the_second_of_two_calls(key):
    def wanted(case):
        views = (not case.tensor(name).spec.is_contiguous for name in case.program[-1].inputs)
        return len(_drawn(case)) > 1 and case.program[0].inputs != case.program[-1].inputs and any(views)

    found, _ = minimal(cases(gloo_space), wanted, key=key)
    assert found.tensors == (Tensor("x", TensorSpec((1,))), Tensor("x_2", TensorSpec((2,), layout=Layout((2,)))))
    assert [call.op for call in found.program] == ["all_reduce", "all_reduce"]


X = Tensor("x", TensorSpec((1,)))
X2 = Tensor("x_2", TensorSpec((1,)))
Y = Tensor("y", TensorSpec((2,), payload="poison"))
SUM = Call("all_reduce", ("x",), ("x",), reduce_op="sum")
SECOND = replace(SUM, inputs=("x_2",), outputs=("x_2",))
GATHER = Call("all_gather_into_tensor", ("x",), ("y",))


def _read_again(calls):
    written = set()
    for call in calls:
        if written & {*call.inputs}:
            return True
        written |= {*call.outputs}
    return False


def _read_by_another(case):
    return _read_again([call for call in _drawn(case) if call.inputs != call.outputs])


def _buffer_again(case):
    calls = [call for call in _drawn(case) if call.inputs != call.outputs]
    return any({*one.outputs} & {*two.outputs} for place, one in enumerate(calls) for two in calls[:place])


PROGRAMS = {
    "two calls": (
        lambda case: len({call.inputs for call in _drawn(case)}) > 1,
        (X, X2),
        (SUM, SECOND),
    ),
    "three calls": (
        lambda case: len({call.inputs for call in _drawn(case)}) > 2,
        (X, X2, Tensor("x_3", X.spec)),
        (SUM, SECOND, replace(SUM, inputs=("x_3",), outputs=("x_3",))),
    ),
    "a result is read": (lambda case: _read_again(_drawn(case)), (X,), (SUM, SUM)),
    "a result is read by an out-of-place call": (
        _read_by_another,
        (X, Y, Tensor("y_2", TensorSpec((4,), payload="poison"))),
        (GATHER, Call("all_gather_into_tensor", ("y",), ("y_2",))),
    ),
    "a buffer is passed again": (_buffer_again, (X, Y, X2), (GATHER, replace(GATHER, inputs=("x_2",)))),
    "a local computation": (
        lambda case: any(call.op == "double" for call in case.program),
        (X,),
        (SUM, Call("double", ("x",), ("x",)), SUM),
    ),
    "a wait after the next call": (
        lambda case: any(call.wait is not None for call in _drawn(case)),
        (X, X2),
        (replace(SUM, async_op=True, wait=1), SECOND),
    ),
    "a late rank": (lambda case: any(call.late == 1 for call in case.program), (X,), (replace(SUM, late=1),)),
}


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("key", range(3))
def test_the_fewest_calls(name, key):
    wanted, tensors, program = PROGRAMS[name]
    found, tried = minimal(cases(gloo_space), wanted, key=key)
    assert found == Case("gloo", World(2), tensors, program)
    assert tried < 300


@pytest.mark.parametrize("key", range(3))
def test_a_region(key):
    space = replace(gloo_space, contract=replace(GLOO, regions=Promise(("all_reduce",), "a test")))
    found, _ = minimal(cases(space), lambda case: any(call.region is not None for call in case.program), key=key)
    assert found == Case("gloo", World(2), (X, X2), (replace(SUM, region=1), replace(SECOND, region=1)))
    found, _ = minimal(cases(space), lambda case: len(_drawn(case)) > 1, key=key)
    assert all(call.region is None for call in found.program)


@pytest.mark.parametrize("key", range(3))
def test_one_call_of_several(key):
    """What one call shows is left of a long program, whatever came before and after it."""

    def wanted(case):
        return any(
            call.op == "gather" and case.tensor(call.inputs[0]).spec.numel > 50 and call.root == 1
            for call in case.program
        )

    found, _ = minimal(cases(gloo_space), wanted, key=key)
    assert [(call.op, call.root, call.late) for call in found.program] == [("gather", 1, None)]
    assert [tensor.spec.shape for tensor in found.tensors] == [(51,)] * 3
    assert found.relations == ()


def _twins(case):
    groups = {call.group for call in case.program}
    return len({frozenset(case.world.ranks(group)) for group in groups}) < len(groups)


@pytest.mark.parametrize("key", range(3))
def test_groups(key):
    strategy = cases(gloo_space)
    found, _ = minimal(strategy, lambda case: any(g.ranks[0] > g.ranks[-1] for g in case.world.groups), key=key)
    assert found == Case("gloo", World(2, (Group("g0", (1, 0)),)), (X,), (replace(SUM, group="g0"),))
    found, _ = minimal(strategy, _twins, key=key)
    assert [call.op for call in found.program] == ["all_reduce", "all_reduce"]
    assert found.world.size == 2


@pytest.mark.parametrize("key", range(3))
def test_a_relation(key):
    found, _ = minimal(cases(gloo_space), lambda case: any(r.name == "permutation" for r in case.relations), key=key)
    related = Tensor("x_2", X.spec, data=Data("x", shift=1))
    relations = (Relation("permutation", ("x_2",), ("x",)),)
    assert found == Case("gloo", World(2), (X, related), (SUM, SECOND), relations=relations)


@pytest.mark.parametrize("key", range(3))
def test_a_flag(key):
    flags = tuple(Flag(name, ("0", "1"), Scope.CALL, "a test") for name in ("A", "B"))
    found, _ = minimal(cases(replace(gloo_space, flags=flags)), lambda case: ("B", "1") in case.flags, key=key)
    assert found == replace(_all_reduce(TensorSpec((1,))), flags=(("B", "1"),))


@pytest.mark.parametrize("key", range(3))
def test_a_payload_of_a_reduction(key):
    found, _ = minimal(cases(gloo_space), _any_spec(lambda spec: spec.payload == "special"), key=key)
    assert found == _all_reduce(TensorSpec((1,), payload="special"))
