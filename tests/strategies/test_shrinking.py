"""What Hypothesis shrinks to is exactly what a person would have written."""

from __future__ import annotations

from dataclasses import replace

import pytest

from corpus.case import CONTIGUOUS, OPS, Call, Case, Layout, Tensor, TensorSpec, World
from corpus.flags import Flag, Scope
from strategies.cases import cases
from tests.strategies.helpers import fresh_space, gloo_space, minimal, specs

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


@pytest.mark.parametrize("key", range(2))
def test_the_second_of_two_calls(key):
    def wanted(case):
        views = (not case.tensor(name).spec.is_contiguous for name in case.program[-1].inputs)
        return len(case.program) > 1 and any(views)

    found, _ = minimal(cases(gloo_space), wanted, key=key)
    assert found.tensors == (Tensor("x", TensorSpec((1,))), Tensor("x_2", TensorSpec((2,), layout=Layout((2,)))))
    assert [call.op for call in found.program] == ["all_reduce", "all_reduce"]


@pytest.mark.parametrize("key", range(3))
def test_a_flag(key):
    flags = tuple(Flag(name, ("0", "1"), Scope.CALL, "a test") for name in ("A", "B"))
    found, _ = minimal(cases(replace(gloo_space, flags=flags)), lambda case: ("B", "1") in case.flags, key=key)
    assert found == replace(_all_reduce(TensorSpec((1,))), flags=(("B", "1"),))


@pytest.mark.parametrize("key", range(3))
def test_a_payload_of_a_reduction(key):
    found, _ = minimal(cases(gloo_space), _any_spec(lambda spec: spec.payload == "special"), key=key)
    assert found == _all_reduce(TensorSpec((1,), payload="special"))
