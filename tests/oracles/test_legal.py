"""The legal set holds every result of every order, and nothing that a lost contribution would give."""

from fractions import Fraction
from itertools import combinations

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from simulated import combine, contract, words

from corpus.dtypes import DTYPES
from corpus.payload import integer_bits, word_type
from oracles import bound
from oracles.legal import How, Reduction, forms, judge, legal_words, power, predict
from oracles.rounding import round_to, values

FLOATS = ("float32", "bfloat16", "float16", "float64")
GOOD = (How.EXACT, How.MEMBER)


def reduction(op, name, ranks, **promises):
    return Reduction(op, DTYPES[name], ranks, contract(**promises))


def wide_words(name, ranks, count, seed=0):
    """Numbers of both signs over a few binades, so that the order of additions shows."""
    random = np.random.default_rng(seed)
    numbers = random.choice([-1.0, 1.0], (ranks, count)) * np.exp2(random.uniform(-4, 4, (ranks, count)))
    return [round_to(row, DTYPES[name].format) for row in numbers]


def of(numbers, name):
    """One element a rank."""
    return [round_to(np.array([number]), DTYPES[name].format) for number in numbers]


def tensors(rows, name):
    return [torch.from_numpy(row.copy()).view(getattr(torch, name)) for row in rows]


def tree(draw, leaves, join):
    """Add leaves in an order and shape that Hypothesis chooses."""
    while len(leaves) > 1:
        left = leaves.pop(draw(st.integers(0, len(leaves) - 1)))
        right = leaves.pop(draw(st.integers(0, len(leaves) - 1)))
        leaves.append(join(left, right))
    return leaves[0]


@settings(derandomize=True, deadline=None, max_examples=100)
@given(
    st.data(),
    st.sampled_from(FLOATS),
    st.integers(2, 5),
    st.sampled_from(["sum", "product", "avg"]),
    st.integers(0, 2**32 - 1),
)
def test_every_tree_that_torch_computes_is_legal(data, name, ranks, op, seed):
    rows = wide_words(name, ranks, 64, seed)
    total = tree(data.draw, tensors(rows, name), torch.mul if op == "product" else torch.add)
    if op == "avg":
        total = total / ranks
    assert np.isin(judge(reduction(op, name, ranks), rows, words(total)), GOOD).all()


def every_tree(parts):
    """All sums of tensors that torch gives, by recursion over the ways to cut them in two."""
    if len(parts) == 1:
        return parts
    found = []
    for mask in range(1, 1 << (len(parts) - 1)):
        left = [part for place, part in enumerate(parts) if mask >> place & 1]
        right = [part for place, part in enumerate(parts) if not mask >> place & 1]
        found += [one + other for one in every_tree(left) for other in every_tree(right)]
    return found


@settings(derandomize=True, deadline=None, max_examples=100)
@given(st.sampled_from(FLOATS), st.integers(2, 5), st.data(), st.integers(0, 2**32 - 1))
def test_a_lost_contribution_is_wrong_unless_a_tree_of_all_gives_the_same(name, ranks, data, seed):
    rows = wide_words(name, ranks, 64, seed)
    rest = tensors(rows, name)
    del rest[data.draw(st.integers(0, ranks - 1))]
    total = words(tree(data.draw, rest, torch.add))
    by_chance = np.any([words(one) == total for one in every_tree(tensors(rows, name))], axis=0)
    how = judge(reduction("sum", name, ranks), rows, total)
    np.testing.assert_array_equal(how != How.WRONG, by_chance)


@pytest.mark.parametrize("name", FLOATS)
def test_a_lost_contribution_shows_at_nearly_every_element(name):
    rows = wide_words(name, 4, 4000, seed=3)
    how = judge(reduction("sum", name, 4), rows, predict(reduction("sum", name, 3), rows[:3]))
    # Only where bits of a small addend are below the others' last place can it go unseen.
    assert (how == How.WRONG).mean() > 0.95


@pytest.mark.parametrize(("ranks", "trees"), [(2, 1), (3, 3), (4, 15), (5, 105)])
def test_as_many_forms_as_binary_trees(ranks, trees):
    # The prediction comes first, and once more among the trees.
    assert sum(1 for _ in forms(reduction("sum", "float32", ranks), wide_words("float32", ranks, 1))) == trees + 1


def test_three_ranks_have_three_sums():
    third = of([1.0, 2.0**-24, 2.0**-24], "float32")
    found, note = legal_words(reduction("sum", "float32", 3), third)
    assert ({word.item() for word in found}, note) == ({0x3F800000, 0x3F800001}, "")


@pytest.mark.parametrize(("promise", "legal"), [("native", False), ("native or wide", True)])
def test_a_wide_accumulator_is_legal_only_where_the_contract_says_so(promise, legal):
    rows = wide_words("bfloat16", 4, 2000, seed=11)
    wide = words(sum(part.float() for part in tensors(rows, "bfloat16")).bfloat16())
    how = judge(reduction("sum", "bfloat16", 4, accumulation=promise), rows, wide)
    assert (how != How.WRONG).all() == legal


@pytest.mark.parametrize("ranks", [3, 4])
def test_float32_sums_accumulated_in_float64_are_legal_where_wide_is(ranks):
    rows = wide_words("float32", ranks, 500, seed=9)
    wide = sum(row.view(np.float32).astype(np.float64) for row in rows).astype(np.float32).view(np.uint32)
    how = judge(reduction("sum", "float32", ranks, accumulation="native or wide"), rows, wide)
    assert np.isin(how, GOOD).all()


def test_a_zero_seeded_accumulator_turns_minus_zero_into_zero():
    rows = of([-0.0, -0.0, -0.0], "float32")
    how = judge(reduction("sum", "float32", 3), rows, np.array([0], dtype=np.uint32))
    assert how[0] in GOOD


def test_minus_zero_is_not_a_sum_that_has_a_plus_zero():
    rows = of([-0.0, 0.0], "float32")
    how = judge(reduction("sum", "float32", 2), rows, np.array([0x80000000], dtype=np.uint32))
    assert how[0] == How.WRONG


def test_infinity_is_legal_where_some_order_overflows():
    top = float(np.finfo(np.float32).max)
    rows = of([top, top, -top], "float32")
    infinity, largest = np.array([0x7F800000], dtype=np.uint32), rows[0]
    verdicts = [judge(reduction("sum", "float32", 3), rows, seen)[0] in GOOD for seen in (infinity, largest)]
    assert verdicts == [True, True]


def test_any_nan_is_any_nan():
    rows = of([np.nan, 1.0], "float16")
    how = judge(reduction("sum", "float16", 2), rows, np.array([0xFE01], dtype=np.uint16))
    assert how[0] in GOOD


@pytest.mark.parametrize(("form", "legal"), [("pre/n", True), ("sum/n", False)])
@pytest.mark.parametrize("name", FLOATS)
def test_a_mean_that_divides_first_is_legal_only_where_the_contract_says_so(name, form, legal):
    rows = wide_words(name, 3, 500, seed=12)
    x, y, z = (part / 3 for part in tensors(rows, name))
    how = judge(reduction("avg", name, 3, average=(form,)), rows, words(x + y + z))
    assert (how != How.WRONG).all() == legal


@pytest.mark.parametrize("name", FLOATS)
def test_a_mean_by_a_rounded_reciprocal_is_legal_where_the_contract_says_so(name):
    rows = wide_words(name, 3, 500, seed=4)
    x, y, z = tensors(rows, name)
    reciprocal = torch.tensor(1.0, dtype=x.dtype) / 3
    after, before = (x + y + z) * reciprocal, x * reciprocal + y * reciprocal + z * reciprocal
    assert np.isin(judge(reduction("avg", name, 3, average=("sum*(1/n)",)), rows, words(after)), GOOD).all()
    assert np.isin(judge(reduction("avg", name, 3, average=("pre*(1/n)",)), rows, words(before)), GOOD).all()


@pytest.mark.parametrize("name", FLOATS)
def test_a_premultiplied_sum_multiplies_by_the_rounded_factor(name):
    rows = wide_words(name, 3, 500, seed=5)
    factor = torch.tensor(0.3, dtype=getattr(torch, name))
    x, y, z = (part * factor for part in tensors(rows, name))
    premul = Reduction("premul_sum", DTYPES[name], 3, contract(), factor=0.3)
    assert np.isin(judge(premul, rows, words(x + y + z)), GOOD).all()


def test_a_fused_premultiplied_sum_is_legal():
    rows = wide_words("float32", 2, 500, seed=6)
    x, y = (row.view(np.float32).astype(np.float64) for row in rows)
    factor = float(np.float32(0.3))
    fused = ((x * factor).astype(np.float32) + y * factor).astype(np.float32).view(np.uint32)
    how = judge(Reduction("premul_sum", DTYPES["float32"], 2, contract(), factor=factor), rows, fused)
    assert np.isin(how, GOOD).all()


@pytest.mark.parametrize(("promise", "legal"), [("exact", False), ("may flush", True)])
def test_a_flushed_subnormal_is_legal_where_the_contract_says_so(promise, legal):
    rows = of([2.0**-127, 2.0**-128], "float32")
    how = judge(reduction("sum", "float32", 2, subnormals=promise), rows, np.array([0], dtype=np.uint32))
    assert (how[0] != How.WRONG) == legal


@pytest.mark.parametrize("op", ["min", "max"])
@pytest.mark.parametrize(
    ("promise", "verdicts"),
    [
        ("propagates", (How.MEMBER, How.WRONG, How.WRONG)),
        ("either", (How.MEMBER, How.MEMBER, How.WRONG)),
        ("unspecified", (How.UNSPECIFIED, How.UNSPECIFIED, How.WRONG)),
    ],
)
def test_nan_in_an_extremum_is_as_the_contract_says(op, promise, verdicts):
    rows = of([np.nan, 1.0, 1.0], "float32")
    seen = np.array([0x7FC00000, 0x3F800000, 0x40000000], dtype=np.uint32)
    repeated = [np.repeat(row, 3) for row in rows]
    assert tuple(judge(reduction(op, "float32", 3, nan_extremum=promise), repeated, seen)) == verdicts


def test_the_larger_of_two_zeros_may_be_either():
    rows = of([-0.0, 0.0], "float32")
    both = [np.repeat(row, 2) for row in rows]
    how = judge(reduction("max", "float32", 2), both, np.array([0x80000000, 0], dtype=np.uint32))
    assert np.isin(how, GOOD).all()


@pytest.mark.parametrize("op", ["sum", "product", "min", "max", "band", "bor", "bxor"])
@pytest.mark.parametrize("name", ["int8", "uint8", "int16", "int32", "int64", "bool"])
def test_integers_have_one_result_which_is_torchs(name, op):
    top = 2 if name == "bool" else 1 << (8 * DTYPES[name].word)
    random = np.random.default_rng(8)
    rows = [random.integers(0, top, 1000, dtype=word_type(DTYPES[name])) for _ in range(3)]
    torchs = words(combine(op, tensors(rows, name)))
    how = judge(reduction(op, name, 3), rows, torchs)
    assert (how == How.EXACT).all()


@pytest.mark.parametrize(("total", "legal"), [(-7, {-3, -4}), (7, {3})])
def test_an_integer_mean_divides_towards_zero_or_down(total, legal):
    dtype = DTYPES["int32"]
    rows = [integer_bits(np.array([part]), dtype) for part in (total, 0)]
    found = {
        value
        for value in range(-5, 6)
        if judge(reduction("avg", "int32", 2), rows, integer_bits(np.array([value]), dtype))[0]
    }
    assert found == legal


def test_components_of_a_complex_sum_are_judged_together():
    dtype = DTYPES["complex64"]
    rows = [np.stack(wide_words("float32", 2, 8, seed), axis=1).reshape(8, 2) for seed in (1, 2)]
    seen = predict(Reduction("sum", dtype, 2, contract()), rows)
    seen[3, 1] ^= 1
    how = judge(Reduction("sum", dtype, 2, contract()), rows, seen)
    assert np.flatnonzero(how == How.WRONG).tolist() == [3]


@pytest.mark.parametrize(("name", "op"), [("float8_e8m0fnu", "sum"), ("complex64", "product")])
def test_what_nobody_defines_is_unspecified(name, op):
    dtype = DTYPES[name]
    shape = (4, 2) if dtype.components == 2 else (4,)
    rows = [np.ones(shape, dtype=word_type(dtype))] * 2
    assert (judge(reduction(op, name, 2), rows, rows[0]) == How.UNSPECIFIED).all()


# Above five ranks.


@pytest.mark.parametrize("ranks", [6, 16, 64])
@pytest.mark.parametrize("name", FLOATS)
def test_sparse_elements_of_many_ranks_keep_membership(name, ranks):
    rows = wide_words(name, 4, 200, seed=ranks)
    places = np.sort(np.random.default_rng(ranks).choice(ranks, 4, replace=False))
    everyone = [np.zeros_like(rows[0]) for _ in range(ranks)]
    for place, row in zip(places, rows, strict=True):
        everyone[place] = row
    a, b, c, d = tensors(rows, name)
    assert (judge(reduction("sum", name, ranks), everyone, words((d + b) + (a + c))) == How.MEMBER).all()


@pytest.mark.parametrize("name", FLOATS)
def test_a_bit_off_in_a_sparse_element_of_many_ranks_is_wrong(name):
    rows = [*wide_words(name, 2, 200), *(np.zeros(200, dtype=word_type(DTYPES[name])) for _ in range(6))]
    seen = predict(reduction("sum", name, 2), rows[:2])
    assert (judge(reduction("sum", name, 8), rows, seen ^ seen.dtype.type(1)) == How.WRONG).all()


@pytest.mark.parametrize("name", FLOATS)
def test_exact_sums_of_many_ranks_have_one_result(name):
    dtype = DTYPES[name]
    numbers = np.random.default_rng(2).integers(-8, 9, (8, 500))
    rows = [integer_bits(row, dtype) for row in numbers]
    exact = integer_bits(numbers.sum(axis=0), dtype)
    off = exact ^ exact.dtype.type(1)
    many = (numbers != 0).sum(axis=0) > 5
    assert (judge(reduction("sum", name, 8), rows, exact)[many] == How.EXACT).all()
    assert (judge(reduction("sum", name, 8), rows, off) == How.WRONG).all()


@settings(derandomize=True, deadline=None)
@given(st.lists(st.integers(-50, 50), min_size=6, max_size=8), st.integers(-20, 20))
def test_a_sum_is_called_exact_only_where_all_partial_sums_are(integers, exponent):
    numbers = [float(integer) * 2.0**exponent for integer in integers]
    rows = of(numbers, "bfloat16")
    fmt = DTYPES["bfloat16"].format
    held = [Fraction(float(values(row, fmt, np.float64)[0])) for row in rows]
    assume(bound.exact_sum(rows, fmt)[0])
    sums = [float(sum(held[start:stop])) for start, stop in combinations(range(len(held) + 1), 2)]
    np.testing.assert_array_equal(values(round_to(np.array(sums), fmt), fmt, np.float64), sums)


@settings(derandomize=True, deadline=None)
@given(
    st.data(),
    st.sampled_from(FLOATS),
    st.integers(6, 12),
    st.sampled_from(["sum", "avg", "product"]),
    st.integers(0, 99),
)
def test_every_tree_of_many_ranks_is_within_the_bound(data, name, ranks, op, seed):
    rows = wide_words(name, ranks, 64, abs(seed))
    total = tree(data.draw, tensors(rows, name), torch.mul if op == "product" else torch.add)
    total = words(total / ranks if op == "avg" else total)
    assert (judge(reduction(op, name, ranks), rows, total) != How.WRONG).all()


@pytest.mark.parametrize("name", FLOATS)
def test_a_bound_is_no_pass_for_everything(name):
    rows = wide_words(name, 8, 200, seed=1)
    how = judge(reduction("sum", name, 8), rows, rows[0])
    assert (how == How.WRONG).mean() > 0.9


def test_the_detection_power_of_a_bound_falls_with_the_ranks():
    powers = [
        float(np.mean(power(reduction("sum", "bfloat16", ranks), wide_words("bfloat16", ranks, 2000, seed=7))))
        for ranks in (8, 16, 32)
    ]
    assert 1 > powers[0] > powers[1] > powers[2] > 0


@pytest.mark.parametrize(
    ("first", "seen", "legal"),
    [
        (np.nan, 0x7FC00000, True),
        (np.nan, 0x3F800000, False),
        (np.inf, 0x7F800000, True),
        (np.inf, 0xFF800000, False),
        (np.inf, 0x3F800000, False),
    ],
)
def test_infinity_and_nan_of_many_ranks_stay(first, seen, legal):
    rows = of([first, *(1.1 * rank for rank in range(1, 7))], "float32")
    how = judge(reduction("sum", "float32", 7), rows, np.array([seen], dtype=np.uint32))
    assert (how[0] != How.WRONG) == legal
