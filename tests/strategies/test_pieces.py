"""The parts of a case on their own: sizes, shapes, layouts, payloads, groups and calls."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import strategies as st

from corpus.case import OPS, TensorSpec
from corpus.dtypes import DTYPES
from corpus.thresholds import FAMOUS, Threshold
from strategies.boundaries import MOST_THRESHOLDS, WIDEST_HIDDEN, draw_size, sizes
from strategies.calls import FORMS, PATTERNS, shapes, split_matrix
from strategies.choose import Choice, spread
from strategies.layouts import VIEWS, Plan, View, lay_out
from strategies.payloads import payloads
from strategies.shapes import ARRANGEMENTS, HIDDEN, shape_of
from strategies.worlds import subgroups
from tests.strategies.helpers import draws


def test_sizes_around_a_threshold():
    found = sizes(4, (), 3, "one", 1 << 30).ascending
    assert list(found) == sorted(set(found))
    assert {0, 1, 2, 3, 7, 8, 9, 13, 16_381, 65_536, 65_537} < set(found)
    t = FAMOUS.size
    assert {t - 16, t - 1, t, t + 1, t + 16, t // 3 * 3, t // 3 * 3 + 3, t + WIDEST_HIDDEN - 1} < set(found)


@pytest.mark.parametrize("itemsize", [1, 2, 4, 8, 16])
def test_a_threshold_in_bytes(itemsize):
    threshold = Threshold(1_000_003, "bytes", "a test", alignment=128)
    found = sizes(itemsize, (threshold,), 2, "one", 1 << 30).thresholds
    below = 1_000_003 // itemsize
    assert {below - 1, below, below + 1, below - 128 // itemsize, below + 128 // itemsize} < set(found)


@pytest.mark.parametrize("role", ["one", "whole", "list"])
@pytest.mark.parametrize("count", [1, 9, 20, MOST_THRESHOLDS])
def test_no_threshold_is_forgotten_however_many_there_are(role, count):
    thresholds = tuple(Threshold(10_007 * (place + 1), "elements", "a test") for place in range(count))
    found = sizes(4, thresholds, 3, role, 1 << 30)
    assert {threshold.size for threshold in (FAMOUS, *thresholds)} <= set(found.thresholds)
    assert set(draws(st.composite(draw_size)(found), examples=50)) & set(found.thresholds)


@pytest.mark.parametrize("role", ["one", "whole", "list"])
@pytest.mark.parametrize("most", [2, 17, 1000, 5_000_000])
def test_sizes_are_bounded(role, most):
    found = sizes(4, (), 2, role, most)
    assert max(found.ascending) <= most
    assert found.small


def test_the_parts_of_a_whole_are_at_the_threshold_too():
    found = set(sizes(4, (), 4, "whole", 1 << 30).thresholds)
    assert {FAMOUS.size, 4 * FAMOUS.size, 4 * FAMOUS.size - 4} <= found


@pytest.mark.parametrize("arrangement", set(ARRANGEMENTS), ids=str)
def test_a_shape_is_never_larger_than_its_size(arrangement):
    for size in (*range(40), 511, 512, 5120, FAMOUS.size, FAMOUS.size + 1):
        shape = shape_of(size, arrangement)
        spec = TensorSpec(shape)
        assert spec.numel <= size
        assert (spec.numel == 0) == (size == 0)
        large = [extent for extent in shape if extent > 1]
        assert len(set(large)) == len(large)


def test_tokens_reach_the_threshold_whatever_the_hidden_size():
    for arrangement in ARRANGEMENTS:
        if set(arrangement.fixed) & set(HIDDEN):
            assert TensorSpec(shape_of(FAMOUS.size + WIDEST_HIDDEN - 1, arrangement)).numel >= FAMOUS.size


@pytest.mark.parametrize("view", VIEWS, ids=str)
@pytest.mark.parametrize("writable", [True, False])
def test_every_view_of_every_shape_is_legal(view, writable):
    shapes_ = {shape_of(size, arrangement) for size in (0, 1, 24, 20_000) for arrangement in ARRANGEMENTS}
    for shape, dtype in itertools.product(shapes_, ("float32", "complex64", "uint8")):
        plain = TensorSpec(shape, dtype)
        room = max(plain.numel, 1) * 2
        spec = lay_out(plain, Plan(view, 3, 5), room=room, writable=writable)
        assert spec.storage_elements <= room
        assert not (writable and spec.overlaps)
        assert (spec.shape, spec.dtype) == (shape, dtype)


@pytest.mark.parametrize("kind", dict.fromkeys(view.kind for view in VIEWS))
def test_a_view_is_what_its_name_says(kind):
    spec = TensorSpec((2, 3, 1, 5), "complex64")
    found = lay_out(spec, Plan(View(kind, 2)), room=10_000, writable=False)
    if kind in ("contiguous", "singleton"):
        assert found.is_contiguous
    else:
        assert not found.is_contiguous or found.layout.conj or found.layout.neg
    assert found.overlaps == (kind == "expanded")


@pytest.mark.parametrize("ranks", [1, 2, 5])
def test_few_ranks_get_any_payload(ranks):
    assert set(payloads("sum", "float32", ranks)) == {"index", "exact", "wide", "special", "sparse"}


def test_many_ranks_get_data_whose_sum_can_be_checked():
    for reduce_op, dtype in itertools.product(("sum", "avg", "product", "premul_sum"), ("bfloat16", "complex64")):
        assert set(payloads(reduce_op, dtype, 6)) == {"index", "exact", "sparse"}
    assert "wide" in payloads("max", "bfloat16", 6)
    assert "wide" in payloads("sum", "int32", 6)
    assert "special" in payloads(None, "float32", 64)


def test_no_payload_is_constant_or_out_of_order():
    order = ("index", "exact", "wide", "special", "sparse")
    for reduce_op, ranks in itertools.product(("sum", "product", None), (2, 8)):
        found = payloads(reduce_op, "float32", ranks)
        assert list(found) == sorted(found, key=order.index)


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 8, 64])
def test_subgroups(size):
    groups = subgroups(size)
    assert len(set(groups)) == len(groups)
    assert all(list(group) == sorted(set(group)) and group[-1] < size for group in groups)
    assert tuple(range(size)) in groups
    assert [len(group) for group in groups] == sorted(len(group) for group in groups)


@pytest.mark.parametrize("pattern", sorted(set(PATTERNS)))
@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_no_rank_sends_more_rows_than_it_may(pattern, ranks):
    for most in (0, 1, 4):
        matrix = split_matrix(pattern, ranks, most)
        assert all(0 <= rows <= most for row in matrix for rows in row)


@pytest.mark.parametrize("op", [op for op in OPS if op != "barrier"])
@pytest.mark.parametrize("form", sorted(set(FORMS)))
def test_no_tensor_of_a_call_is_larger_than_its_size(op, form):
    whole = op in ("all_gather_into_tensor", "reduce_scatter_tensor", "all_to_all_single")
    for pattern in set(PATTERNS):
        given, taken = shapes(op, (4, 5), 3, form, pattern)
        assert max(TensorSpec(shape).numel for each in given + taken for shape in each) <= (60 if whole else 20)


def test_spreading_keeps_every_option():
    for count in (1, 3, 64, 200):
        found = spread(tuple(range(count)), 64)
        assert set(found) == set(range(count))
        assert list(found) == sorted(found)
    assert spread((), 64) == ()


def test_a_choice_is_among_few():
    with pytest.raises(AssertionError):
        Choice("too many", range(257))


def test_every_dtype_is_in_shrinking_order():
    assert next(iter(DTYPES)) == "float32"
