"""Sizes worth trying, in elements.

Defects sit where a route, a segment count or a tail changes: at thresholds, next to powers of two, at multiples of the
world size, at nothing and at one. Most of these sizes are small, because small cases are cheap and find most.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Final, Literal, TypeAlias

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

from corpus.payload import PERIOD
from corpus.thresholds import FAMOUS, Threshold
from strategies.choose import MOST, Choice, spread

Role: TypeAlias = Literal["one", "whole", "list"]
"""What the size counts: the elements of each of one or two tensors ("one"); of the larger tensor, which holds a part
for every rank ("whole"); or of every tensor in lists of one a rank ("list")."""

WIDEST_HIDDEN: Final = 16_384
"""Largest hidden size of a model that is drawn. Any tokens x hidden shape that was cut down to a multiple of its hidden
size is still at or above a threshold t if it was cut from t + WIDEST_HIDDEN - 1 elements."""

_SMALL_PRIMES: Final = (19, 23, 29, 37, 61, 97, 251, 509, 1021, 2039, 4093)
_LARGE_PRIMES: Final = (16_411, 32_749, 65_537, 131_071, 262_139)

_LARGE, _THRESHOLD, _EMPTY = 28, 64, 12
"""Weights of the classes, out of 255; the rest is small. A case at 4,194,304 elements costs as much as ten small ones,
so a quarter of the cases takes most of the time."""
_MOST_NEAR: Final = 112
"""Sizes at thresholds, as long as small ones must still have half the weight."""
MOST_THRESHOLDS: Final = _MOST_NEAR // 3 - 1
"""Thresholds of a backend, FAMOUS apart, of which each side and the size itself are surely among those."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """Sizes of one tensor, each class sorted; a size that stands twice is drawn twice as often."""

    small: tuple[int, ...]
    large: tuple[int, ...]
    thresholds: tuple[int, ...]
    least: int
    """The smallest size that is not nothing: a "whole" has an element for every rank."""

    @property
    def ascending(self) -> tuple[int, ...]:
        """Every size worth trying, once, nothing included."""
        return tuple(sorted({0, *self.small, *self.large, *self.thresholds}))


def around(threshold: Threshold, itemsize: int, parts: int, role: Role) -> Iterator[int]:
    """Yield sizes next to a threshold of `itemsize`-byte elements, for tensors that are cut into `parts`.

    Exactly the threshold, or both sides of it where it falls within an element, and one element less and more, twice;
    one alignment unit less and more; the nearest multiples of `parts`; and enough more for any tokens x hidden shape to
    reach it.
    """
    exact = threshold.elements(itemsize)
    unit = threshold.alignment // (1 if threshold.unit == "elements" else itemsize) or 1
    chunk = exact // parts
    if role == "list":
        yield from (chunk - 1, chunk, chunk + 1, exact)
        return
    yield from (exact - 1, exact, exact + 1) * 2
    yield from (exact - unit, exact + unit)
    yield from ((chunk - 1) * parts, chunk * parts, (chunk + 1) * parts, exact + WIDEST_HIDDEN - 1)
    if role == "whole":
        yield from ((exact - 1) * parts, exact * parts, (exact + 1) * parts)


def _near_powers(first: int, last: int) -> Iterator[int]:
    return (size + step for power in range(first, last + 1) for size in (1 << power,) for step in (-1, 0, 1))


def _within(sizes: Iterable[int], least: int, most: int) -> tuple[int, ...]:
    return tuple(sorted({size for size in sizes if least <= size <= most}))


@lru_cache(maxsize=4096)
def sizes(itemsize: int, thresholds: tuple[Threshold, ...], parts: int, role: Role, most: int) -> Sizes:
    """Return the sizes worth trying for `itemsize`-byte elements in a group of `parts` ranks, up to `most` elements.

    FAMOUS is among the thresholds, whatever the backend says.
    """
    least = parts if role == "whole" else 1
    marks = {FAMOUS, *thresholds}
    near = [size for threshold in marks for size in around(threshold, itemsize, parts, role) if least <= size <= most]
    exact = [threshold.elements(itemsize) + step for threshold in marks for step in (-1, 0, 1)]
    exact = [size for size in exact if least <= size <= most]
    multiples = [times * parts + step for times in (1, 2, 3, 5, 8, 64, 341) for step in (-1, 0, 1)]
    return Sizes(
        small=_within((*range(1, 18), *multiples, *_SMALL_PRIMES, *_near_powers(5, 12)), least, most),
        large=_within((*_near_powers(13, 18), *_LARGE_PRIMES, PERIOD, PERIOD + 1, 2 * PERIOD + 1), least, most),
        thresholds=tuple(sorted(near if len(near) <= _MOST_NEAR else exact)),
        least=least,
    )


@cache
def _between(low: int, high: int) -> SearchStrategy[int]:
    return st.integers(low, high)


@lru_cache(maxsize=4096)
def _ranges(sizes: Sizes) -> Choice[SearchStrategy[int]]:
    large, near, empty = spread(sizes.large, _LARGE), spread(sizes.thresholds, _THRESHOLD), (0,) * _EMPTY
    small = spread(sizes.small, MOST - 1 - len(large) - len(near) - len(empty))
    landmarks = (*small, *large, *near, *empty)
    anything = _between(sizes.least, sizes.ascending[-1])
    return Choice("range of the size", (anything, *(_between(size, size) for size in landmarks)))


def draw_size(draw: DrawFn, sizes: Sizes) -> int:
    """Draw a size: often at a threshold, mostly small, seldom nothing.

    First a range, then an integer within it. All but the first range hold one size, so the integer *is* the size, and
    it stays a legal choice when the range is shrunk to the first, which holds every size but 0. From there Hypothesis
    lowers the integer to exactly where the failure begins, landmark or not. An empty tensor tests little, so the
    simplest size is 1.
    """
    return draw(_ranges(sizes).draw(draw))
