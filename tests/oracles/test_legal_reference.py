"""The legal set is that of a reference that shares nothing with it: fractions, every tree, one rounding a node."""

from fractions import Fraction
from functools import reduce
from itertools import product
from math import inf, nan

import numpy as np
import pytest
from simulated import contract

from corpus.case import Call, Case, Tensor, TensorSpec, World
from corpus.dtypes import DTYPES, Kind
from corpus.payload import special_values, word_type
from oracles import bound
from oracles.contents import Contents
from oracles.legal import How, Reduction, forms, judge
from oracles.rounding import canonical_nan

SMALL = ("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz")
FLOATS = (*SMALL, "float16", "bfloat16", "float32", "float64")
F32, F64 = DTYPES["float32"].format, DTYPES["float64"].format
SATURATES, NO_INFINITY = "float8_e4m3fn", ("float8_e4m3fnuz", "float8_e5m2fnuz")


# Numbers: a fraction that is not zero, or a float for what no fraction is: a zero with its sign, an infinity, NaN.


def decode(code, fmt):
    sign = -1 if code >> (fmt.bits - 1) else 1
    exponent = (code >> fmt.mantissa) & ((1 << fmt.exponent) - 1)
    fraction = code & ((1 << fmt.mantissa) - 1)
    if fmt.nan is not None:
        if code == fmt.nan or (fmt.nan < 1 << (fmt.bits - 1) and code & ((1 << (fmt.bits - 1)) - 1) == fmt.nan):
            return nan
    elif exponent == (1 << fmt.exponent) - 1:
        return nan if fraction else sign * inf
    if exponent == 0 and fraction == 0:
        return sign * 0.0
    significand = fraction if exponent == 0 else fraction + (1 << fmt.mantissa)
    return sign * significand * Fraction(2) ** (max(exponent, 1) - fmt.bias - fmt.mantissa)


def rounded(number, fmt):
    """The nearest number of a format, ties to even, by exhaustion of cases."""
    lacks_minus_zero = fmt.nan == 1 << (fmt.bits - 1)
    if isinstance(number, float):
        if number in (inf, -inf) and not fmt.infinity:
            return nan if lacks_minus_zero else (1 if number > 0 else -1) * top(fmt)
        return 0.0 if number == 0 and lacks_minus_zero else number
    size = abs(number)
    exponent = max(size.numerator.bit_length() - size.denominator.bit_length() - 1, 1 - fmt.bias)
    while size >= Fraction(2) ** (exponent + 1):
        exponent += 1
    step = Fraction(2) ** (exponent - fmt.mantissa)
    size = round(size / step) * step
    sign = 1 if number > 0 else -1
    if size > top(fmt):
        return sign * inf if fmt.infinity else nan if lacks_minus_zero else sign * top(fmt)
    if size == 0:
        return 0.0 if lacks_minus_zero else sign * 0.0
    return sign * size


def top(fmt):
    """The largest number: that below infinity, or, where there is none, below NaN if that ends the codes."""
    code = ((1 << fmt.exponent) - 1) << fmt.mantissa if fmt.infinity else 1 << (fmt.bits - 1)
    return next(number for number in (decode(code - 1, fmt), decode(code - 2, fmt)) if isinstance(number, Fraction))


def add(left, right):
    if isinstance(left, Fraction) and isinstance(right, Fraction):
        return left + right or 0.0
    if isinstance(left, float) and isinstance(right, float):
        return left + right
    special, plain = (left, right) if isinstance(left, float) else (right, left)
    return plain if special == 0 else special


def multiply(left, right):
    if isinstance(left, Fraction) and isinstance(right, Fraction):
        return left * right
    as_sign = [float((part > 0) - (part < 0)) if isinstance(part, Fraction) else part for part in (left, right)]
    return as_sign[0] * as_sign[1]


def divide(number, divisor):
    return number / divisor if isinstance(number, Fraction) else number / float(divisor)


def token(number):
    return "nan" if number != number else (number, str(number)[0] == "-")


def every_tree(leaves, node):
    """All results of all trees over sets of leaves; `node` gives the values that an inner node may hold."""
    if len(leaves) == 1:
        return leaves[0]
    found = []
    for mask in range(1, 1 << (len(leaves) - 1)):
        one = [leaf for place, leaf in enumerate(leaves) if mask >> place & 1]
        other = [leaf for place, leaf in enumerate(leaves) if not mask >> place & 1]
        found += [value for a in every_tree(one, node) for b in every_tree(other, node) for value in node(a, b)]
    return list({token(value): value for value in found}.values())


def codes(name, ranks, count, seed=0):
    """Edge values and random bits, some rows of which cancel or overflow."""
    dtype = DTYPES[name]
    random = np.random.default_rng(seed)
    edges = np.array(special_values(dtype), dtype=word_type(dtype))
    rows = [random.integers(0, 1 << (8 * dtype.word), count, dtype=word_type(dtype)) for _ in range(ranks)]
    return [np.where(random.random(count) < 0.4, random.choice(edges, count), row) for row in rows]


def legal_tokens(reduction, rows):
    """The legal results of each element, as tokens."""
    fmt = reduction.dtype.format
    found = np.stack(list(forms(reduction, rows)))
    return [{token(decode(int(code), fmt)) for code in set(column.tolist())} for column in found.T]


def reduction(op, name, ranks, **promises):
    return Reduction(op, DTYPES[name], ranks, contract(**promises))


@pytest.mark.parametrize("ranks", [3, 4])
@pytest.mark.parametrize("name", FLOATS)
def test_native_sums_are_those_of_every_tree(name, ranks):
    fmt, rows = DTYPES[name].format, codes(name, ranks, 150)
    legal = legal_tokens(reduction("sum", name, ranks), rows)
    for place, column in enumerate(zip(*rows, strict=True)):
        leaves = [[decode(int(code), fmt)] for code in column]
        assert legal[place] == set(map(token, every_tree(leaves, lambda a, b: [rounded(add(a, b), fmt)])))


@pytest.mark.parametrize("ranks", [3, 4])
@pytest.mark.parametrize("name", FLOATS)
def test_native_products_are_those_of_every_tree(name, ranks):
    fmt, rows = DTYPES[name].format, codes(name, ranks, 150, seed=1)
    legal = legal_tokens(reduction("product", name, ranks), rows)
    for place, column in enumerate(zip(*rows, strict=True)):
        leaves = [[decode(int(code), fmt)] for code in column]
        exact = set(map(token, every_tree(leaves, lambda a, b: [rounded(multiply(a, b), fmt)])))
        assert exact <= legal[place]
        if fmt.bits <= 16:
            # A product of 16-bit numbers that is formed in float32 underflows there, and rounds twice.
            twice = every_tree(leaves, lambda a, b: [rounded(rounded(multiply(a, b), F32), fmt)])
            assert legal[place] <= exact | set(map(token, twice))
        elif fmt.bits == 32:
            assert legal[place] == exact


@pytest.mark.parametrize("ranks", [3, 4])
@pytest.mark.parametrize("name", ["float8_e4m3fn", "float8_e5m2", "float16", "bfloat16"])
def test_sums_in_which_each_node_may_stay_wide(name, ranks):
    fmt, rows = DTYPES[name].format, codes(name, ranks, 60, seed=2)

    def node(a, b):
        wide = rounded(add(a, b), F32)
        return [rounded(wide, fmt), wide]

    legal = legal_tokens(reduction("sum", name, ranks, accumulation="native or wide"), rows)
    for place, column in enumerate(zip(*rows, strict=True)):
        leaves = [[decode(int(code), fmt)] for code in column]
        roots = every_tree(leaves, node)
        # In-network reduction: one addition of all, which rounds once (but for what float64 itself cannot hold).
        roots.append(reduce(lambda a, b: rounded(add(a, b), F64), (leaf[0] for leaf in leaves)))
        assert set(map(token, (rounded(root, fmt) for root in roots))) <= legal[place]


@pytest.mark.parametrize("ranks", [3, 4])
@pytest.mark.parametrize("name", FLOATS)
def test_means_that_divide_the_sum_or_each_input(name, ranks):
    fmt, rows = DTYPES[name].format, codes(name, ranks, 100, seed=3)

    def node(a, b):
        return [rounded(add(a, b), fmt)]

    after = legal_tokens(reduction("avg", name, ranks), rows)
    before = legal_tokens(reduction("avg", name, ranks, average=("pre/n",)), rows)
    for place, column in enumerate(zip(*rows, strict=True)):
        leaves = [[decode(int(code), fmt)] for code in column]
        sums = every_tree(leaves, node)
        exact = {token(rounded(divide(total, ranks), fmt)) for total in sums}
        assert exact <= after[place]
        divided = [[rounded(divide(leaf[0], ranks), fmt)] for leaf in leaves]
        assert set(map(token, every_tree(divided, node))) <= before[place]
        if fmt.bits == 32:
            assert exact == after[place]


@pytest.mark.parametrize("factor", [0.0, 0.5, -2.0, 0.3])
@pytest.mark.parametrize("name", ["float8_e5m2", "float16", "bfloat16", "float32"])
def test_premultiplied_sums(name, factor):
    fmt, rows = DTYPES[name].format, codes(name, 3, 100, seed=4)
    scale = rounded(Fraction(factor) if factor else 0.0, fmt)
    legal = legal_tokens(Reduction("premul_sum", DTYPES[name], 3, contract(), factor=factor), rows)
    for place, column in enumerate(zip(*rows, strict=True)):
        leaves = [[rounded(multiply(decode(int(code), fmt), scale), fmt)] for code in column]
        assert set(map(token, every_tree(leaves, lambda a, b: [rounded(add(a, b), fmt)]))) <= legal[place]


@pytest.mark.parametrize("op", ["sum", "product"])
@pytest.mark.parametrize("name", ["float8_e5m2", "float16", "bfloat16", "float32"])
def test_subnormals_that_are_flushed_before_or_after(name, op):
    fmt, rows = DTYPES[name].format, codes(name, 3, 100, seed=5)
    smallest = Fraction(2) ** (1 - fmt.bias)

    def flushed(number):
        tiny = isinstance(number, Fraction) and abs(number) < smallest
        return (0.0 if number > 0 else -0.0) if tiny else number

    function = add if op == "sum" else multiply
    legal = legal_tokens(reduction(op, name, 3, subnormals="may flush"), rows)
    for place, column in enumerate(zip(*rows, strict=True)):
        leaves = [[decode(int(code), fmt)] for code in column]
        for operand, result in product((lambda x: x, flushed), repeat=2):

            def node(a, b, operand=operand, result=result):
                return [result(rounded(function(operand(a), operand(b)), fmt))]

            assert set(map(token, every_tree(leaves, node))) <= legal[place]


@pytest.mark.parametrize("name", FLOATS)
@pytest.mark.parametrize("op", ["min", "max"])
def test_extrema_hold_an_input_of_that_value(name, op):
    fmt, rows = DTYPES[name].format, codes(name, 3, 200, seed=6)
    legal = legal_tokens(reduction(op, name, 3, nan_extremum="propagates"), rows)
    for place, column in enumerate(zip(*rows, strict=True)):
        numbers = [decode(int(code), fmt) for code in column]
        if any(number != number for number in numbers):
            assert legal[place] == {"nan"}
            continue
        extremum = (min if op == "min" else max)(numbers)
        assert legal[place] == {token(number) for number in numbers if number == extremum}


# Integers, by Python's.


INTEGERS = [name for name, dtype in DTYPES.items() if dtype.kind in (Kind.SIGNED, Kind.UNSIGNED)]


def integer(code, dtype):
    code, bits = int(code), 8 * dtype.word
    return code - (1 << bits) if dtype.kind is Kind.SIGNED and code >> (bits - 1) else code


def integer_results(name, ranks, op, function, **promises):
    dtype = DTYPES[name]
    rows = codes(name, ranks, 200, seed=7)
    found = np.stack(list(forms(reduction(op, name, ranks, **promises), rows)))
    for place, column in enumerate(zip(*rows, strict=True)):
        wanted = function([integer(code, dtype) for code in column])
        assert {int(code) for code in found[:, place]} == {number % (1 << (8 * dtype.word)) for number in wanted}


@pytest.mark.parametrize("ranks", [3, 4])
@pytest.mark.parametrize("name", INTEGERS)
def test_integers_wrap_at_their_limits(name, ranks):
    integer_results(name, ranks, "sum", lambda numbers: {sum(numbers)})
    integer_results(name, ranks, "product", lambda numbers: {reduce(int.__mul__, numbers)})
    integer_results(name, ranks, "min", lambda numbers: {min(numbers)})
    integer_results(name, ranks, "max", lambda numbers: {max(numbers)})


def towards_zero(number, divisor):
    return number // divisor if number >= 0 else -(-number // divisor)


@pytest.mark.parametrize("ranks", [3, 4])
@pytest.mark.parametrize("name", INTEGERS)
def test_integer_means_of_every_form(name, ranks):
    dtype = DTYPES[name]
    bits = 8 * dtype.word

    def wrapped(number):
        return integer(number % (1 << bits), dtype)

    def after(numbers):
        return {towards_zero(wrapped(sum(numbers)), ranks), wrapped(sum(numbers)) // ranks}

    def wide(numbers):
        return after(numbers) | {towards_zero(sum(numbers), ranks), sum(numbers) // ranks}

    def before(numbers):
        return {sum(towards_zero(number, ranks) for number in numbers), sum(number // ranks for number in numbers)}

    integer_results(name, ranks, "avg", after)
    integer_results(name, ranks, "avg", wide, accumulation="native or wide")
    integer_results(name, ranks, "avg", before, average=("pre/n",))


@pytest.mark.parametrize("name", INTEGERS)
def test_a_factor_of_integers_is_unspecified(name):
    rows = codes(name, 3, 10)
    premul = Reduction("premul_sum", DTYPES[name], 3, contract(), factor=0.5)
    assert (judge(premul, rows, rows[0]) == How.UNSPECIFIED).all()


@pytest.mark.parametrize("op", ["sum", "product", "min", "max", "band", "bor", "bxor"])
def test_a_byte_that_is_no_bool_is_wrong(op):
    rows = [np.array([0, 1, 1, 0], dtype=np.uint8), np.array([0, 0, 1, 1], dtype=np.uint8)]
    for byte in (2, 3, 255):
        assert (judge(reduction(op, "bool", 2), rows, np.full(4, byte, dtype=np.uint8)) == How.WRONG).all()


# Where only a bound judges.


def test_saturated_partial_sums_of_many_ranks_are_not_called_wrong():
    fmt = DTYPES[SATURATES].format
    largest = int(canonical_nan(fmt)) - 1
    rows = [np.array([code], dtype=np.uint8) for code in [largest] * 4 + [largest | 0x80] * 3]
    leaves = [decode(int(row[0]), fmt) for row in rows]
    total = reduce(lambda a, b: rounded(add(a, b), fmt), leaves)
    assert isinstance(total, Fraction)
    seen = np.array([code for code in range(256) if token(decode(code, fmt)) == token(total)], dtype=np.uint8)
    assert (judge(reduction("sum", SATURATES, 7), rows, seen[:1]) != How.WRONG).all()


def test_flushed_subnormals_of_many_ranks_are_legal_where_the_contract_says_so():
    rows = [np.array([0x00400000 + rank], dtype=np.uint32) for rank in range(7)]
    zero = np.zeros(1, dtype=np.uint32)
    verdicts = [
        judge(reduction("sum", "float32", 7, subnormals=promise), rows, zero) for promise in ("exact", "may flush")
    ]
    assert [how[0] == How.WRONG for how in verdicts] == [True, False]


def test_a_factor_of_zero_makes_nan_of_infinity():
    rows = [np.array([0x7F800000], dtype=np.uint32)] + [np.array([0x3F800001], dtype=np.uint32)] * 6
    interval = bound.sum_interval(rows, F32, 0.0, scaled=True)
    assert np.isnan(interval.known).all()


def test_a_factor_of_zero_is_not_one():
    tensors = (Tensor("x", TensorSpec((4,), payload="wide")),)
    call = Call("all_reduce", ("x",), ("x",), reduce_op="premul_sum", factor=0.0)
    case = Case("simulated", World(2), tensors, (call,))
    (part,) = Contents(case, contract()).parts(0, 0, "x")
    assert not (part.predicted & np.uint32(0x7FFFFFFF)).any()
