"""How many ranks, and which of them call."""

from __future__ import annotations

from functools import cache
from itertools import combinations
from typing import Final, TypeAlias

from hypothesis.strategies import DrawFn

from corpus.case import WORLD, Group
from strategies.choose import choose

Members: TypeAlias = tuple[int, ...]

_ALL_SUBSETS: Final = 4
"""Largest world of which every subset is a group worth drawing."""
_WORLD_WEIGHT: Final = 40
"""A call is over the world this many times as often as over any one sub-group."""


@cache
def subgroups(size: int) -> tuple[Members, ...]:
    """Groups of a world, fewer ranks first, each in rank order: all of them, or of a large world the usual ones.

    Those are the first, the middle and the last rank alone, halves, even and odd ranks, all but one, and all. A group
    of all ranks is not the world: it has a communicator of its own.
    """
    world = range(size)
    if size <= _ALL_SUBSETS:
        return tuple(members for count in range(1, size + 1) for members in combinations(world, count))
    half = size // 2
    usual = [(0,), (half,), (size - 1,), (0, 1), (0, size - 1), world[:half], world[half:], world[::2], world[1::2]]
    usual += [world[1:], world[:-1], (*world[:half], *world[half + 1 :]), world]
    return tuple(sorted({tuple(members) for members in usual}, key=lambda members: (len(members), members)))


@cache
def _choices(size: int, least: int) -> tuple[Members | None, ...]:
    groups = tuple(members for members in subgroups(size) if len(members) >= least)
    return (*(None,) * _WORLD_WEIGHT, *groups)


def draw_size(draw: DrawFn, sizes: tuple[int, ...]) -> int:
    """Draw the world's size; `sizes` ascend."""
    return choose(draw, "world", sizes)


def draw_members(draw: DrawFn, size: int, least: int) -> Members | None:
    """Draw the global ranks of a group of at least `least` ranks; None, and mostly so, is the world."""
    return choose(draw, "group", _choices(size, least))


class Groups:
    """The sub-groups of one case, named in the order in which the calls use them."""

    def __init__(self) -> None:
        self._names: dict[Members, str] = {}

    def name(self, members: Members | None) -> str:
        """Return the name of a group, the same for the same ranks."""
        return WORLD if members is None else self._names.setdefault(members, f"g{len(self._names)}")

    def all(self) -> tuple[Group, ...]:
        """The groups that have been named."""
        return tuple(Group(name, members) for members, name in self._names.items())
