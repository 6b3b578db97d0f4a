"""Payloads: the same everywhere, different for every rank, position and call, exact where that is promised."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from corpus.case import PAYLOADS, Call, Case, Layout, Tensor, TensorSpec, World
from corpus.dtypes import DTYPES, Kind
from corpus.payload import PERIOD, SPARSE_RANKS, payload, special_values, word_type

_WORDS = {1: torch.uint8, 2: torch.uint16, 4: torch.uint32, 8: torch.uint64}
REAL = [name for name, dtype in DTYPES.items() if dtype.kind not in (Kind.COMPLEX, Kind.OPAQUE)]


def case_of(spec: TensorSpec, world: int = 4, seed: int = 0) -> Case:
    call = Call("broadcast", ("x",), ("x",), root=0)
    return Case("gloo", World(world), (Tensor("x", spec),), (call,), seed=seed)


def values(spec: TensorSpec, rank: int, world: int = 4, seed: int = 0) -> np.ndarray:
    """The payload as float64 (or int64 for integers), through torch: a reading that is not ours."""
    bits = payload(case_of(spec, world, seed), "x", rank).bits()
    tensor = torch.from_numpy(bits).view(getattr(torch, spec.dtype))
    return tensor.to(torch.float64).numpy() if tensor.dtype.is_floating_point else tensor.to(torch.int64).numpy()


def test_index_payload_is_readable() -> None:
    assert values(TensorSpec((3,)), 0).tolist() == [1.0, 5.0, 9.0]
    assert values(TensorSpec((3,)), 1).tolist() == [2.0, 6.0, 10.0]


def test_index_payload_tells_the_tensors_of_a_list_apart() -> None:
    spec = TensorSpec((4,))
    tensors = (Tensor("x0", spec), Tensor("x1", spec), Tensor("y", TensorSpec((4,), payload="poison")))
    case = Case("gloo", World(2), tensors, (Call("reduce_scatter", ("x0", "x1"), ("y",), reduce_op="sum"),))
    assert not set(payload(case, "x0", 0).bits()) & set(payload(case, "x1", 0).bits())


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "int64"])
def test_index_payload_tells_ranks_and_positions_apart(dtype: str) -> None:
    everything = np.concatenate([values(TensorSpec((PERIOD,), dtype), rank) for rank in range(4)])
    assert len(np.unique(everything)) == 4 * PERIOD


@pytest.mark.parametrize("dtype", [name for name in REAL if name != "bool"])
@pytest.mark.parametrize("kind", ["index", "exact"])
@pytest.mark.parametrize("world", [4, 6])
def test_exact_payloads_have_exact_sums(dtype: str, kind: str, world: int) -> None:
    spec = TensorSpec((500,), dtype, payload=kind)
    total = sum(values(spec, rank, world) for rank in range(world))
    word = torch.tensor(total, dtype=torch.float64 if DTYPES[dtype].kind is Kind.FLOAT else torch.int64)
    assert torch.equal(word.to(getattr(torch, dtype)).to(word.dtype), word)


@pytest.mark.parametrize("dtype", list(DTYPES))
@pytest.mark.parametrize("kind", PAYLOADS)
def test_payloads_are_never_constant(dtype: str, kind: str) -> None:
    case = case_of(TensorSpec((200,), dtype, payload=kind), world=8)
    distinct = {payload(case, "x", rank).bits().tobytes() for rank in range(8)}
    assert len(distinct) == 8
    assert len(np.unique(payload(case, "x", 0).bits(), axis=0)) >= 2


@pytest.mark.parametrize("dtype", [name for name in REAL if name != "bool"])
def test_special_payload_holds_every_special_value(dtype: str) -> None:
    case = case_of(TensorSpec((4000,), dtype, payload="special"))
    assert set(special_values(DTYPES[dtype])) <= set(payload(case, "x", 0).bits().tolist())


def test_special_values_of_float32() -> None:
    wanted = [0.0, 1.0, float("inf"), float(torch.finfo(torch.float32).max), float(torch.finfo(torch.float32).tiny)]
    found = torch.from_numpy(np.array(special_values(DTYPES["float32"]), np.uint32)).view(torch.float32)
    assert set(wanted) <= set(found.tolist())
    assert found.isnan().any()
    assert ((found != 0) & (found.abs() < torch.finfo(torch.float32).tiny)).any()


def test_sparse_payload_has_four_ranks_at_an_element() -> None:
    everything = np.stack([values(TensorSpec((100,), payload="sparse"), rank, world=8) for rank in range(8)])
    assert ((everything != 0).sum(axis=0) == SPARSE_RANKS).all()
    assert (everything != 0).any(axis=1).all()


def test_a_shift_by_the_period_shows() -> None:
    bits = payload(case_of(TensorSpec((3 * PERIOD,))), "x", 0).bits()
    assert not np.array_equal(bits[:PERIOD], bits[PERIOD : 2 * PERIOD])
    assert not np.array_equal(bits[PERIOD : 2 * PERIOD], bits[2 * PERIOD :])


def test_long_payloads_turn_alike_on_every_rank() -> None:
    # Element i of every rank comes from the same place of its table: what makes one period enough for a reference.
    case = case_of(TensorSpec((PERIOD * 2 + 5,)))
    places = np.arange(PERIOD * 2 + 5)
    for rank in range(4):
        data = payload(case, "x", rank)
        assert np.array_equal(data.table[payload(case, "x", 0).places(places)], data.bits())


def test_any_stretch_is_a_stretch_of_the_whole() -> None:
    data = payload(case_of(TensorSpec((PERIOD * 2 + 5,))), "x", 1)
    whole = data.bits()
    for start, length in ((0, 1), (PERIOD - 1, 2), (PERIOD + 7, PERIOD - 2), (2 * PERIOD, 5)):
        assert np.array_equal(data.bits(start, length), whole[start : start + length])


def test_seed_and_name_change_the_data() -> None:
    spec = TensorSpec((50,), payload="wide")
    case = Case(
        "gloo",
        World(2),
        (Tensor("x", spec), Tensor("y", spec)),
        (Call("broadcast", ("x",), ("x",), root=0), Call("broadcast", ("y",), ("y",), root=0)),
    )
    texts = {payload(case, name, 0).bits().tobytes() for name in ("x", "y")}
    texts.add(values(spec, 0, seed=1).tobytes())
    assert len(texts) == 3


def test_an_overlapping_view_repeats_its_memory() -> None:
    data = payload(case_of(TensorSpec((2, 3), layout=Layout((0, 1)))), "x", 0).bits()
    assert np.array_equal(data[:3], data[3:])


def test_the_data_of_a_case_does_not_change() -> None:
    # A finding is data: what was reported last year must be the same data today.
    bits = payload(case_of(TensorSpec((4,), payload="wide")), "x", 2).bits()
    assert bits.dtype == word_type(DTYPES["float32"])
    assert [f"{word:08x}" for word in bits] == WIDE


WIDE = ["423ca0c4", "3ea37241", "bfc5fbe8", "3d0608f1"]
