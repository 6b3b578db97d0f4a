"""One way to draw: an index into a tuple whose plainest entry comes first.

Hypothesis shrinks the index towards 0, so an entry's place is its plainness, and repeating an entry is its weight.

Every choice has a name, its own in each place. Hypothesis follows each example by up to five mutants, in which one of
two draws of the same kind is copied over the other. Between two calls that is useful. Within one it would make most
cases near copies of each other. The kind of a draw is taken from its entries, so the name is made part of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Final, Generic, TypeVar

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn

T = TypeVar("T")

MOST: Final = 256
"""Entries of a choice: Hypothesis draws integers evenly up to about 256, and prefers small ones above."""


class Choice(Generic[T]):
    """A named choice among at most MOST options, the plainest first."""

    def __init__(self, name: str, options: Iterable[T]) -> None:
        entries = [(name, option) for option in options]
        assert 0 < len(entries) <= MOST, (name, len(entries))
        self._strategy = st.sampled_from(entries)

    def draw(self, draw: DrawFn) -> T:
        """Draw an option."""
        return draw(self._strategy)[1]


_choice = lru_cache(maxsize=4096)(Choice)


def choose(draw: DrawFn, name: str, options: Sequence[T]) -> T:
    """Draw one of options that are known only now: a tuple of what is cheap to hash, or a range.

    One option counts as two: where there is nothing to choose Hypothesis records nothing, and every call should be the
    same number of choices, so that the others keep their places when its op is shrunk.
    """
    choice: Choice[T] = _choice(name, options if len(options) > 1 else (*options, *options))
    return choice.draw(draw)


def seldom(draw: DrawFn, name: str) -> bool:
    """Draw whether to deviate from the plain program: true once in eight."""
    return choose(draw, name, range(8)) == 7


def spread(options: Sequence[T], slots: int) -> tuple[T, ...]:
    """Repeat options, in order and as evenly as can be, so that they fill at least `slots` places."""
    count = max(slots, len(options)) if options else 0
    return tuple(options[slot * len(options) // count] for slot in range(count))
