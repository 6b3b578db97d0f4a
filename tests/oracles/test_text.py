"""Values are shown in the fewest digits that name them, with their bits."""

import numpy as np
import pytest

from corpus.dtypes import DTYPES
from corpus.payload import word_type
from oracles.text import element, listed, ranks_text


@pytest.mark.parametrize(
    ("name", "bits", "text"),
    [
        ("float32", 0x3DCCCCCD, "0.1 (0x3dcccccd)"),
        ("float32", 0x41200000, "10 (0x41200000)"),
        ("float32", 0x80000000, "-0 (0x80000000)"),
        ("float32", 0x7F800000, "inf (0x7f800000)"),
        ("float32", 0x7FC00001, "nan (0x7fc00001)"),
        ("float64", 0x3FB999999999999A, "0.1 (0x3fb999999999999a)"),
        ("bfloat16", 0x3DCD, "0.1 (0x3dcd)"),
        ("float8_e4m3fn", 0x7E, "448 (0x7e)"),
        ("int8", 0xFF, "-1 (0xff)"),
        ("uint8", 0xFF, "255 (0xff)"),
        ("bool", 1, "True (0x01)"),
        ("bool", 2, "neither True nor False (0x02)"),
        ("float8_e8m0fnu", 0x7F, "bits (0x7f)"),
    ],
)
def test_an_element(name, bits, text):
    assert element(np.array([bits], dtype=word_type(DTYPES[name])), DTYPES[name]) == text


def test_a_complex_element():
    words = np.array([[0x3F800000, 0xC0000000]], dtype=np.uint32)
    assert element(words[0], DTYPES["complex64"]) == "(1 + -2i) (0x3f800000, 0xc0000000)"


def test_lists():
    assert (listed([0, 1, 3]), ranks_text([1]), ranks_text([0, 2])) == ("0, 1 and 3", "rank 1", "ranks 0 and 2")
