"""Each hypothesis is named for the wrong results that it explains, and none for those that it does not."""

from functools import reduce

import numpy as np
import pytest
import torch
from simulated import Simulation, case_of, combine, contract

from corpus.payload import hash_counters
from oracles.observe import observe


def diagnosed(op, function, *, shape=(40,), world=3, rank=0, promised=None, **options):
    """What is said of `rank`, which holds `function(inputs, rank)` where a right result of an all_reduce belongs."""
    simulation = Simulation(case_of("all_reduce", shape, world=world, reduce_op=op, **options))
    simulation.write(rank, "x", function([mine["x"] for mine in simulation.inputs], rank))
    return said(simulation, rank, promised or contract())


def said(simulation, rank, promised=None):
    """What is said of a rank's wrong output."""
    reports = observe(simulation.case, promised or contract(), rank, simulation.buffers[rank])
    (entry,) = [entry for entry in reports["numeric"]["outputs"] if entry["wrong"]]
    return entry["explanation"]


def total(parts):
    """The left fold, as torch computes it; of float8, which torch does not add, of the numbers in float32."""
    if parts[0].dtype in (torch.float8_e4m3fn, torch.float8_e5m2):
        return total([part.float() for part in parts]).to(parts[0].dtype)
    return reduce(torch.add, parts)


def without(*lost):
    return lambda inputs, rank: total([part for place, part in enumerate(inputs) if place not in lost])


def twice(*ranks):
    return lambda inputs, rank: total([*inputs, *(inputs[place] for place in ranks)])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "float64", "int32", "int64", "int16", "uint8"])
def test_sets_of_missing_ranks(dtype):
    text = diagnosed("sum", without(1, 3), world=5, dtype=dtype, shape=(200,))
    assert text == "the contributions of ranks 1 and 3 are missing"


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (without(2), "rank 2's contribution is missing"),
        (without(0, 1), "the contributions of ranks 0 and 1 are missing"),
        (without(0, 2, 3), "only the contributions of ranks 1 and 4 are in it"),
        (without(0, 2, 3, 4), "no reduction: it holds rank 1's input"),
        (twice(4), "rank 4's contribution is counted twice"),
        (twice(0, 4), "the contributions of ranks 0 and 4 are counted twice"),
        (twice(0, 1, 2, 3, 4), "every contribution is counted twice"),
        (lambda x, rank: x[0] + x[0] + x[2] + x[3] + x[4], "rank 0's contribution stands in for rank 1's"),
        (lambda x, rank: x[rank], "no reduction: it holds this rank's own input"),
        (lambda x, rank: total(x) / 5, "another reduce op: it holds avg, not sum"),
        (lambda x, rank: total(x) / 8, "it is divided by 8"),
        (lambda x, rank: torch.zeros(40), "it holds zeros only"),
        (lambda x, rank: torch.full((40,), 2.5), "it holds one value only, 2.5"),
    ],
)
def test_a_sum(function, said):
    assert diagnosed("sum", function, world=5) == said


def test_sets_of_missing_ranks_where_only_a_bound_judges():
    text = diagnosed("sum", without(2, 5), world=8, dtype="float32")
    assert text == "the contributions of ranks 2 and 5 are missing"


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (lambda x, rank: total(x), "another reduce op: it holds sum, not avg"),
        (lambda x, rank: total(x) / 40, "it is divided by 40, the number of elements, instead of 3"),
        (lambda x, rank: total(x) / 3 / 3, "it is divided by 9, twice by the number of ranks, instead of 3"),
        (lambda x, rank: total(x) / 2, "it is divided by 2 instead of 3"),
        (lambda x, rank: x[rank], "no reduction: it holds this rank's own input"),
        (lambda x, rank: x[rank] / 3, "only rank 0's contribution is in it"),
        (lambda x, rank: total([part / 3 for part in x]), "each input is divided before the additions, not sum/n"),
    ],
)
def test_a_mean(function, said):
    assert diagnosed("avg", function) == said


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (lambda x, rank: torch.zeros(40), "the factor 0.5 is read as 0"),
        (lambda x, rank: total(x), "the factor 0.5 is read as 1"),
        (lambda x, rank: total(x) / 4, "the factor 0.5 is read as 0.25, its square"),
        (lambda x, rank: total(x) * 2, "the factor 0.5 is read as 2, its reciprocal"),
    ],
)
def test_a_premultiplied_sum(function, said):
    assert diagnosed("premul_sum", function, factor=0.5) == said


# Two elements of one byte say little.


def test_one_wrong_element_is_no_proof():
    def last(inputs, rank):
        return torch.cat([total(inputs)[:-1], inputs[rank][-1:]])

    wanted = "consistent with: the last element was not reduced: it holds this rank's own input"
    assert diagnosed("sum", last) == wanted


def test_a_tail():
    def tail(inputs, rank):
        return torch.cat([total(inputs)[:-5], inputs[rank][-5:]])

    assert diagnosed("sum", tail) == "the last 5 elements were not reduced: they hold this rank's own input"


def test_a_tail_of_an_output_is_not_written():
    simulation = Simulation(case_of("all_gather_into_tensor", (20,), world=2)).run()
    before = Simulation(simulation.case)
    simulation.buffers[1]["y"].view[-5:] = before.buffers[1]["y"].view[-5:]
    wanted = "the last 5 elements were not written: they hold what the output held before the call"
    assert said(simulation, 1) == wanted


def few_bits(inputs, rank):
    right = total(inputs)
    return torch.where(torch.arange(40) < 2, without(1)(inputs, rank), right)


def test_two_wrong_bytes_are_no_proof():
    text = diagnosed("sum", few_bits, dtype="int8")
    assert text == "consistent with: rank 1's contribution is missing in the first 2 elements"


def test_one_wrong_bool_is_consistent_with_everything():
    text = diagnosed("sum", lambda x, rank: combine("sum", x) ^ (torch.arange(40) == 3), dtype="bool")
    assert text.startswith("no hypothesis explains it; True for False: 1") or "False for True: 1" in text


@pytest.mark.parametrize(
    ("dtype", "op"),
    [
        ("float8_e4m3fn", "max"),
        ("float8_e5m2", "min"),
        ("bool", "sum"),
        ("int8", "sum"),
        ("uint8", "bxor"),
        ("bfloat16", "product"),
        ("complex64", "sum"),
        ("complex128", "sum"),
    ],
)
def test_a_missing_rank_in_every_kind_of_dtype(dtype, op):
    def rest(inputs, rank):
        kept = [part.float() for part in inputs[:2]] if "float8" in dtype else inputs[:2]
        return combine(op, kept).to(inputs[0].dtype)

    payload = "sparse" if dtype == "bool" else "wide"
    assert diagnosed(op, rest, dtype=dtype, shape=(400,), payload=payload).startswith(
        "rank 2's contribution is missing"
    )


# Formats.


def bits(part, dtype):
    return part.view(dtype)


@pytest.mark.parametrize(
    ("dtype", "function", "said"),
    [
        (
            "float32",
            lambda x, rank: total([bits(p, torch.int32) for p in x]).view(torch.float32),
            "float32 are taken for int32",
        ),
        (
            "float16",
            lambda x, rank: total([bits(p, torch.bfloat16) for p in x]).view(torch.float16),
            "float16 are taken for bfloat16",
        ),
        (
            "bfloat16",
            lambda x, rank: total([bits(p, torch.float16) for p in x]).view(torch.bfloat16),
            "bfloat16 are taken for float16",
        ),
        (
            "int32",
            lambda x, rank: total([bits(p, torch.float32) for p in x]).view(torch.int32),
            "int32 are taken for float32",
        ),
        (
            "complex64",
            lambda x, rank: total([bits(p, torch.int32) for p in x]).view(torch.complex64),
            "complex64 are taken for int32",
        ),
    ],
)
def test_bits_taken_for_another_dtype(dtype, function, said):
    assert diagnosed("sum", function, dtype=dtype) == f"the bits of {said}: the sum is computed on them as such"


def swap(part):
    return torch.from_numpy(part.numpy().byteswap())


@pytest.mark.parametrize("dtype", ["float32", "int16", "int64", "float64"])
def test_bytes_in_reverse_order(dtype):
    assert (
        diagnosed("sum", lambda x, rank: swap(total(x)), dtype=dtype)
        == "it holds the right elements with their bytes in reverse order"
    )
    wanted = "the sum reads its inputs' bytes in reverse order"
    assert diagnosed("sum", lambda x, rank: total([swap(part) for part in x]), dtype=dtype) == wanted


@pytest.mark.parametrize(
    ("dtype", "function", "said"),
    [
        (
            "int8",
            lambda x, rank: total([p.long() for p in x]).clamp(-128, 127).to(torch.int8),
            "the sum saturates instead of wrapping",
        ),
        (
            "uint8",
            lambda x, rank: total([p.long() for p in x]).clamp(0, 255).to(torch.uint8),
            "the sum saturates instead of wrapping",
        ),
        ("int64", lambda x, rank: total([p.to(torch.int32) for p in x]).long(), "the sum went through int32"),
        ("int32", lambda x, rank: total([p.to(torch.int8) for p in x]).int(), "the sum went through int8"),
    ],
)
def test_integers_in_another_format(dtype, function, said):
    assert diagnosed("sum", function, dtype=dtype) == said


def test_integers_through_a_float():
    text = diagnosed(
        "sum", lambda x, rank: (total([p.float() for p in x]) / 4).int() * 4, dtype="int32", payload="exact"
    )
    assert text.startswith("no hypothesis explains it; differences: ")
    assert (
        diagnosed("sum", lambda x, rank: total([p.double() for p in x]).long(), dtype="int64")
        == "the sum went through float64"
    )


@pytest.mark.parametrize("lower", ["float16", "bfloat16", "float8_e5m2", "float8_e4m3fn"])
def test_a_copy_through_a_narrower_format(lower):
    simulation = Simulation(case_of("broadcast", (40,), world=2)).run()
    x = simulation.inputs[0]["x"]
    simulation.write(1, "x", x.to(getattr(torch, lower)).to(torch.float32))
    assert said(simulation, 1) == f"the data went through {lower}"


def test_a_sum_saturates_in_a_narrower_format():
    def saturated(inputs, rank):
        top = torch.finfo(torch.float16).max
        narrow = [part.float().clamp(-top, top).to(torch.float16) for part in inputs]
        return total(narrow).float().clamp(-top, top).to(torch.bfloat16)

    text = diagnosed("sum", saturated, world=2, dtype="bfloat16", payload="special", shape=(400,))
    assert text == "the sum went through float16, and saturated at its largest number"


def test_a_sum_saturates_at_its_own_largest_number():
    def saturated(inputs, rank):
        return total(inputs).clamp(-65504, 65504)

    text = diagnosed("sum", saturated, world=2, dtype="float16", payload="special", shape=(400,))
    assert text == "the sum saturates at the largest number instead of becoming infinite"


@pytest.mark.parametrize(
    ("options", "function", "said"),
    [
        (
            {"dtype": "bfloat16", "world": 4},
            lambda x, rank: total([part.double() for part in x]).bfloat16(),
            "the partial sums were kept in a wider format, and not rounded",
        ),
        (
            {"payload": "special", "op": "max", "promised": contract(nan_extremum="propagates")},
            lambda x, rank: reduce(torch.fmax, x),
            "a NaN among the inputs is passed over by the max",
        ),
        (
            {"payload": "special", "world": 2},
            lambda x, rank: torch.where(total(x).abs() < 2.0**-126, total(x) * 0, total(x)),
            "subnormal numbers are flushed to zero",
        ),
    ],
)
def test_what_another_contract_allows(options, function, said):
    options = {"op": "sum", **options}
    assert diagnosed(function=function, shape=(400,), **options) == said


# Nothing explains it.


def garbage(dtype, count=40):
    words = hash_counters(12345, np.arange(8 * count, dtype=np.uint64)).view(np.uint8)
    width = torch.empty(0, dtype=dtype).element_size()
    return torch.from_numpy(words[: width * count].copy()).view(dtype)


@pytest.mark.parametrize("op", ["sum", "max", "avg"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "float64", "float8_e4m3fn", "float8_e5m2"])
@pytest.mark.parametrize("world", [2, 3, 5, 8])
def test_garbage_is_a_histogram(dtype, op, world):
    text = diagnosed(op, lambda x, rank: garbage(x[0].dtype), dtype=dtype, world=world)
    assert text.startswith("no hypothesis explains it; differences in ulp: ")


@pytest.mark.parametrize(("dtype", "op"), [("int8", "sum"), ("int32", "max"), ("uint8", "avg"), ("int64", "bxor")])
def test_garbage_of_integers_is_a_histogram(dtype, op):
    text = diagnosed(op, lambda x, rank: garbage(x[0].dtype), dtype=dtype)
    assert text.startswith("no hypothesis explains it; differences: ")


def test_differences_in_ulp():
    def off(inputs, rank):
        result = total(inputs)
        words = result.view(torch.int32)
        words[:30] += 1
        words[30:36] += torch.tensor([2, 3, 2, 3, 9, 300], dtype=torch.int32)
        result[36] = float("nan")
        return result

    wanted = "no hypothesis explains it; differences in ulp: 1: 30, 2-3: 4, 4-15: 1, 256-65,535: 1, NaN: 1"
    assert diagnosed("sum", off, world=2) == wanted


def test_differences_of_integers():
    off = torch.tensor([1] * 20 + [-3] * 9 + [0] * 11, dtype=torch.int32)
    text = diagnosed("sum", lambda x, rank: total(x) + off, dtype="int32")
    assert text == "no hypothesis explains it; differences: +1: 20, -3: 9"


def test_millions_of_wrong_elements_are_explained_in_time():
    simulation = Simulation(case_of("all_reduce", (4_194_304,), world=3, reduce_op="sum"))
    simulation.buffers[0]["x"].view.copy_(garbage(torch.float32, 4_194_304))
    assert said(simulation, 0).startswith("no hypothesis explains it")
