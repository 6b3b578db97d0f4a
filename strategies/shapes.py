"""A shape for a number of elements.

The number is drawn first and the shape is cut from it, never above it: whatever fails because it has so many elements
also fails as one dimension of that many, so a shape can always be shrunk to one dimension without losing the failure.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from hypothesis.strategies import DrawFn

from strategies.boundaries import WIDEST_HIDDEN
from strategies.choose import Choice

HIDDEN: Final = (
    *(512, 768, 1024, 2048, 2560, 2880, 3584, 4096, 5120, 6144, 7168, 8192, 12_288, WIDEST_HIDDEN),
    *(1000, 5121, 2047),
)
"""Hidden sizes: of models, and three that no vector width divides."""


@dataclass(frozen=True, slots=True)
class Arrangement:
    """Extents that are fixed, and the place among them of the one that takes the rest; `scalar` is no dimensions."""

    fixed: tuple[int, ...] = ()
    place: int = 0
    scalar: bool = False


FLAT: Final = Arrangement()

# Extents differ, so that a permutation shows.
_DIMENSIONS: Final = tuple(
    Arrangement(fixed, place)
    for fixed, places in (
        ((3,), (0, 1)),
        ((8,), (0,)),
        ((2, 3), (0, 1, 2)),
        ((5, 2), (0,)),
        ((7, 16), (1,)),
        ((3, 64), (0,)),
        ((2, 3, 5), (0, 1, 3)),
        ((3, 8, 4), (0,)),
    )
    for place in places
)
_SINGLETONS: Final = (Arrangement((1,)), Arrangement((1,), 1), Arrangement((1, 4), 1), Arrangement((4, 1, 3)))
ARRANGEMENTS: Final = (
    *(FLAT,) * 27,
    *_DIMENSIONS,
    *(Arrangement((hidden,)) for hidden in HIDDEN),
    *_SINGLETONS,
    *(Arrangement(scalar=True),) * 2,
)
"""In shrinking order: one dimension, two to four, tokens x hidden, some of one element, none."""
_ARRANGEMENT: Final = Choice("arrangement", ARRANGEMENTS)


def shape_of(size: int, arrangement: Arrangement) -> tuple[int, ...]:
    """Return a shape of at most `size` elements; of none, with the zero in the arrangement's place, if `size` is 0.

    Fixed extents that do not fit are dropped from the end. The rest is lowered until all extents differ.
    """
    if arrangement.scalar:
        return () if size else (0,)
    fixed = arrangement.fixed
    while size and math.prod(fixed) > size:
        fixed = fixed[:-1]
    rest = size // math.prod(fixed)
    while rest > 1 and rest in fixed:
        rest -= 1
    place = min(arrangement.place, len(fixed))
    return (*fixed[:place], rest, *fixed[place:])


def draw_arrangement(draw: DrawFn) -> Arrangement:
    """Draw how a number of elements becomes a shape."""
    return _ARRANGEMENT.draw(draw)
