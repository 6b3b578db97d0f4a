"""A script's tensors are the case's: values, strides, offsets; and its generator is the fuzzer's, bit for bit."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from program_cases import SUM, chain
from repro_cases import LAYOUTS, OVERLAPPING, entries, failure, op_case

from corpus.case import CONTIGUOUS, Call, Case, Data, Layout, Tensor, TensorSpec
from corpus.dtypes import DTYPES, Kind
from fuzz.repro.code import decode, literals
from fuzz.repro.script import script
from oracles.buffers import Buffer, words_of

torch.set_num_threads(1)

Y = TensorSpec((2,))
SUM_OF_Y = replace(SUM, inputs=("y",), outputs=("y",))


def executed(case: Case, *, faithful: bool = False) -> dict[str, Any]:
    space: dict[str, Any] = {"__name__": "script"}
    failures = [failure("wrong result", op=case.program[0].op), failure("input changed", op=case.program[0].op)]
    exec(script(case, failures, title="data", faithful=faithful), space)
    return space


def assert_same(case: Case, name: str, rank: int, made: torch.Tensor, *, base: bool) -> None:
    """The tensor is the case's: geometry and logical data; with `base` its whole base storage too."""
    buffer = Buffer(case, name, rank, torch.device("cpu"))
    assert buffer.view is not None
    assert buffer.base is not None
    assert (made.shape, made.stride(), made.dtype) == (buffer.view.shape, buffer.view.stride(), buffer.view.dtype)
    assert made.storage_offset() == buffer.view.storage_offset()
    assert (made.is_conj(), made.is_neg()) == (buffer.view.is_conj(), buffer.view.is_neg())
    dtype = DTYPES[buffer.spec.dtype]
    dense = made.resolve_conj().resolve_neg().contiguous().reshape(-1)
    assert words_of(dense, dtype).tolist() == buffer.bits().tolist()
    if base:
        whole = torch.empty(0, dtype=made.dtype).set_(made.untyped_storage())
        assert words_of(whole, dtype).tolist() == words_of(buffer.base, dtype).tolist()


@pytest.mark.parametrize("dtype", [name for name in DTYPES if name != "float4_e2m1fn_x2"])
@pytest.mark.parametrize("payload", ["index", "exact", "wide", "special", "sparse"])
def test_small_tensors_hold_the_payload(dtype: str, payload: str) -> None:
    for size in (1, 5, 16):
        case = op_case("broadcast", (size,), dtype, payload=payload)
        space = executed(case)
        for rank in range(2):
            assert_same(case, "x", rank, space["make_x"](rank), base=False)


@pytest.mark.parametrize("name", [*LAYOUTS, *OVERLAPPING])
def test_views_are_the_cases(name: str) -> None:
    shape, layout = (LAYOUTS | OVERLAPPING)[name]
    case = op_case("all_gather", shape, layout=layout, output_layout=CONTIGUOUS)
    space = executed(case)
    for rank in range(2):
        made = space["make_x"](rank)
        assert_same(case, "x", rank, made, base=False)
        storage = made.untyped_storage().nbytes() // 4
        assert storage == max(case.tensor("x").spec.storage_elements, 0)


@pytest.mark.parametrize("dtype", [name for name in DTYPES if name != "float4_e2m1fn_x2"])
@pytest.mark.parametrize("payload", ["index", "exact", "wide", "special", "sparse"])
def test_the_faithful_generator_is_the_fuzzers(dtype: str, payload: str) -> None:
    for size in (60, 40_000):
        case = op_case("broadcast", (size,), dtype, payload=payload, world=4)
        space = executed(case, faithful=True)
        for rank in (0, 3):
            assert_same(case, "x", rank, space["make_x"](rank), base=False)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8", "bool", "complex64", "float8_e4m3fn"])
def test_faithful_scripts_have_the_same_memory_around_a_view(dtype: str) -> None:
    lazy = {"conj": True} if DTYPES[dtype].kind is Kind.COMPLEX else {}
    for shape, layout in (
        ((3,), Layout((2,), 1, 2, **lazy)),
        ((20_000,), Layout((2,), 3, 1)),
        ((4, 9), Layout(None, 2, 5)),
    ):
        case = op_case("broadcast", shape, dtype, layout=layout)
        made = executed(case, faithful=True)["make_x"](1)
        assert_same(case, "x", 1, made, base=True)


@pytest.mark.parametrize("faithful", [False, True])
@pytest.mark.parametrize("data", [Data("x"), Data("x", start=3, shift=2), Data("x", shift=1, exponent=-1)])
@pytest.mark.parametrize(
    ("dtype", "size", "layout"),
    [
        ("float32", 5, CONTIGUOUS),
        ("float32", 12, Layout((2,), before=1)),
        ("bfloat16", 12, Layout(neg=True)),
        ("complex64", 12, Layout(conj=True)),
        ("float8_e4m3fn", 5, CONTIGUOUS),
    ],
)
def test_data_of_another_tensor_are_the_cases(
    dtype: str, size: int, layout: Layout, data: Data, faithful: bool
) -> None:
    origin = TensorSpec((size,), dtype, layout, payload="wide")
    given = Tensor(
        "x_2", TensorSpec((2,), dtype, payload="wide"), ((1, TensorSpec((2, 1), dtype, payload="wide")),), data
    )
    other = Call("broadcast", ("x_2",), ("x_2",), root=0)
    case = chain(Call("broadcast", ("x",), ("x",), root=1), other, SUM_OF_Y, world=3, x=origin, x_2=given, y=Y)
    space: dict[str, Any] = {"__name__": "script"}
    failures = [failure("wrong result", call=index, op=case.program[index].op) for index in (0, 1)]
    exec(script(case, failures, title="data", faithful=faithful), space)
    for rank in range(3):
        assert_same(case, "x_2", rank, space["make_x_2"](rank), base=False)


@pytest.mark.parametrize("data", [Data("x", start=9_000, shift=1), Data("x", exponent=2)])
def test_long_data_of_another_tensor_are_the_cases_in_a_faithful_script(data: Data) -> None:
    x = TensorSpec((20_000,), payload="wide")
    given = Tensor("x_2", TensorSpec((10_000,), payload="wide"), data=data)
    case = chain(SUM, replace(SUM, inputs=("x_2",), outputs=("x_2",)), x=x, x_2=given)
    space: dict[str, Any] = {"__name__": "script"}
    exec(script(case, [failure("wrong result", call=1)], title="data", faithful=True), space)
    for rank in range(2):
        assert_same(case, "x_2", rank, space["make_x_2"](rank), base=False)


def test_simple_data_of_another_tensor_follow_it() -> None:
    """Long tensors get other data than the case's, and so do those that take a part of it."""
    x = TensorSpec((20_000,), payload="wide")
    given = Tensor("x_2", TensorSpec((3,), payload="wide"), data=Data("x", start=2, shift=1))
    case = chain(SUM, replace(SUM, inputs=("x_2",), outputs=("x_2",)), x=x, x_2=given)
    space: dict[str, Any] = {"__name__": "script"}
    exec(script(case, [failure("wrong result", call=1)], title="data"), space)
    assert space["make_x_2"](1).tolist() == space["make_x"](0)[2:5].tolist()


@pytest.mark.parametrize(
    "entry", [e for e in entries() if e.case.program[0].op == "all_reduce"][::40], ids=lambda e: e.name
)
def test_faithful_scripts_make_the_cases_tensors(entry: Any) -> None:
    space: dict[str, Any] = {"__name__": "script"}
    exec(script(entry.case, entry.failures, title="data", faithful=True), space)
    for name in ("x",):
        if f"make_{name}" in space:
            assert_same(entry.case, name, 0, space[f"make_{name}"](0), base=False)


def test_literals_are_exact() -> None:
    for name, dtype in DTYPES.items():
        if dtype.format is None or dtype.word > 2:
            continue
        bits = np.arange(1 << dtype.format.bits, dtype=np.uint16 if dtype.word == 2 else np.uint8)
        if dtype.components == 2:
            continue
        for word in bits[:: 1 if len(bits) < 300 else 97]:
            text = literals(np.array([word], dtype=bits.dtype), dtype)
            if text is None:
                value = decode(int(word), dtype.format)
                assert value != value, (name, word)
                continue
            space = {"inf": float("inf"), "nan": float("nan")}
            made = torch.tensor([eval(text[0], space)], dtype=getattr(torch, name))
            assert int(words_of(made, dtype)[0]) == int(word), (name, word, text)
