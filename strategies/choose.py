"""One way to draw: an index into a tuple whose plainest entry comes first.

Hypothesis shrinks integers towards 0 one at a time, so an entry's place is its plainness and repeating an entry is its
weight. Indices cost a few microseconds; `sampled_from` over a tuple made on the spot hashes every entry first.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Final, TypeVar

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

T = TypeVar("T")

MOST: Final = 256
"""Entries of a tuple that is drawn from: Hypothesis draws integers evenly up to 256, and prefers small ones above."""


@cache
def up_to(most: int) -> SearchStrategy[int]:
    """Integers from 0 to `most`, made once."""
    return st.integers(0, most)


def choose(draw: DrawFn, options: Sequence[T]) -> T:
    """Draw one of at most MOST options, the first being the plainest."""
    assert len(options) <= MOST, len(options)
    return options[draw(up_to(len(options) - 1))]


def seldom(draw: DrawFn) -> bool:
    """Draw a deviation from the plain program: true once in eight, false when shrunk."""
    return draw(up_to(7)) == 7


def spread(options: Sequence[T], slots: int) -> tuple[T, ...]:
    """Repeat options, in order and as evenly as can be, so that they fill at least `slots` places."""
    count = max(slots, len(options)) if options else 0
    return tuple(options[slot * len(options) // count] for slot in range(count))
