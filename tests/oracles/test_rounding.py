"""Our rounding is torch's and numpy's, bit for bit but for NaN payloads."""

import numpy as np
import pytest
import torch

from corpus.contract import Contract, Promise
from corpus.dtypes import DTYPES
from corpus.payload import special_values, word_type
from oracles.legal import Reduction, predict
from oracles.rounding import canonical, flushes, gradual_underflow, is_nan, round_to, values

SMALL = ("bfloat16", "float16", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz")
FLOATS = ("float32", "float64", "bfloat16", "float16")
CONTRACT = Contract("simulated", {}, Promise("right", "documented"))
UNSIGNED = {1: torch.uint8, 2: torch.uint16, 4: torch.uint32, 8: torch.uint64}


def tensor(words, name):
    return torch.from_numpy(words).view(getattr(torch, name))


def words_of(values_of):
    return values_of.view(UNSIGNED[values_of.element_size()]).numpy()


def random_words(name, count, seed):
    dtype = DTYPES[name]
    return np.random.default_rng(seed).integers(0, 1 << (8 * dtype.word), count, dtype=word_type(dtype))


def float32_near(name):
    """Every number of a format, the numbers half-way between two, and their neighbours in float32."""
    fmt = DTYPES[name].format
    every = np.sort(values(np.arange(1 << fmt.bits, dtype=word_type(DTYPES[name])), fmt, np.float32))
    every = every[np.isfinite(every)].astype(np.float64)
    with np.errstate(all="ignore"):
        near = np.concatenate([every, (every[1:] + every[:-1]) / 2]).astype(np.float32)
    return np.concatenate([near, np.nextafter(near, np.float32(np.inf)), np.nextafter(near, np.float32(-np.inf))])


@pytest.mark.parametrize("name", SMALL)
def test_every_code_decodes_as_torch_decodes_it(name):
    words = np.arange(1 << DTYPES[name].format.bits, dtype=word_type(DTYPES[name]))
    np.testing.assert_array_equal(values(words, DTYPES[name].format, np.float32), tensor(words, name).float().numpy())


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("wide", [np.float32, np.float64])
def test_numbers_round_as_torch_rounds_them_at_and_beside_every_tie(name, wide):
    numbers = np.concatenate([float32_near(name), np.float32([np.nan, np.inf, -np.inf, 0.0, -0.0, 1e30, -1e30])])
    torchs = words_of(torch.from_numpy(numbers).to(getattr(torch, name)))
    fmt = DTYPES[name].format
    np.testing.assert_array_equal(round_to(numbers.astype(wide), fmt), canonical(torchs, fmt))


@pytest.mark.parametrize("name", SMALL)
def test_random_float32_numbers_round_as_torch_rounds_them(name):
    numbers = random_words("float32", 200_000, seed=1).view(np.float32)
    torchs = words_of(torch.from_numpy(numbers).to(getattr(torch, name)))
    np.testing.assert_array_equal(round_to(numbers, DTYPES[name].format), canonical(torchs, DTYPES[name].format))


def test_float64_rounds_to_float32_as_the_processor_does():
    with np.errstate(all="ignore"):
        numbers = random_words("float64", 200_000, seed=2).view(np.float64)
        numbers = np.concatenate(
            [numbers, np.ldexp(numbers, -900), random_words("float32", 1000, 3).view(np.float32) * 1.0]
        )
        wanted = numbers.astype(np.float32).view(np.uint32)
    np.testing.assert_array_equal(
        round_to(numbers, DTYPES["float32"].format), canonical(wanted, DTYPES["float32"].format)
    )


@pytest.mark.parametrize("op", ["sum", "product"])
@pytest.mark.parametrize("name", FLOATS)
def test_two_ranks_have_the_bits_that_torch_computes(name, op):
    dtype = DTYPES[name]
    specials = np.array(special_values(dtype), dtype=word_type(dtype))
    left = np.concatenate([random_words(name, 200_000, 4), np.repeat(specials, len(specials))])
    right = np.concatenate([random_words(name, 200_000, 5), np.tile(specials, len(specials))])
    function = torch.add if op == "sum" else torch.mul
    torchs = words_of(function(tensor(left, name), tensor(right, name)))
    ours = predict(Reduction(op, dtype, 2, CONTRACT), [left, right])
    np.testing.assert_array_equal(ours, canonical(torchs, dtype.format))


@pytest.mark.parametrize("ranks", [2, 3, 5, 7, 48])
@pytest.mark.parametrize("name", FLOATS)
def test_a_mean_has_the_bits_that_torch_divides_to(name, ranks):
    dtype = DTYPES[name]
    left, right = random_words(name, 50_000, 6), random_words(name, 50_000, 7)
    torchs = words_of((tensor(left, name) + tensor(right, name)) / ranks)
    ours = predict(Reduction("avg", dtype, ranks, CONTRACT), [left, right])
    np.testing.assert_array_equal(ours, canonical(torchs, dtype.format))


@pytest.mark.parametrize("name", SMALL)
def test_one_nan_stands_for_all(name):
    words = np.arange(1 << DTYPES[name].format.bits, dtype=word_type(DTYPES[name]))
    fmt = DTYPES[name].format
    assert len(np.unique(canonical(words, fmt)[is_nan(words, fmt)])) == 1


def test_a_thread_that_flushes_subnormals_is_put_right_and_put_back():
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor cannot flush subnormal numbers")
    try:
        with gradual_underflow():
            inside = flushes()
        outside = flushes()
    finally:
        torch.set_flush_denormal(False)
    assert (inside, outside) == (False, True)
