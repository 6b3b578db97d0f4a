"""How many ranks, and which of them call."""

from __future__ import annotations

from functools import cache
from itertools import combinations
from typing import Final, TypeAlias

from hypothesis.strategies import DrawFn

from corpus.case import WORLD, Group
from strategies.choose import Choice, choose

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


_ORDER: Final = Choice("order", (*("ascending",) * 14, "descending", "turned"))


def _ordered(members: Members, order: str) -> Members:
    """The ranks in another order: reversed, or with the first one last."""
    return {"ascending": members, "descending": members[::-1], "turned": (*members[1:], members[0])}[order]


def draw_size(draw: DrawFn, sizes: tuple[int, ...]) -> int:
    """Draw the world's size; `sizes` ascend."""
    return choose(draw, "world", sizes)


def draw_members(draw: DrawFn, size: int, least: int, *, permuted: bool = False) -> Members | None:
    """Draw the global ranks of a group of at least `least` ranks, in group order, which ascends unless it may be
    `permuted`; None, and mostly so, is the world.
    """
    members = choose(draw, "group", _choices(size, least))
    if not permuted:
        return members
    everyone = tuple(range(size)) if members is None else members
    ordered = _ordered(everyone, _ORDER.draw(draw))
    return members if ordered == everyone else ordered


class Groups:
    """The sub-groups of one case, named in the order in which the calls use them."""

    def __init__(self) -> None:
        # By ranks, and by which of two groups of these ranks.
        self._names: dict[tuple[Members, int], str] = {}

    def name(self, members: Members | None, copy: int = 0) -> str:
        """Return the name of a group, the same for the same ranks and copy."""
        return WORLD if members is None else self._names.setdefault((members, copy), f"g{len(self._names)}")

    def twin(self, name: str, members: Members) -> str:
        """Return the name of another group of the same ranks as this one, in the same order."""
        copies = [copy for (_, copy), known in self._names.items() if known == name]
        return self.name(members, 1 - copies[0] if copies else 0)

    def all(self) -> tuple[Group, ...]:
        """The groups that have been named."""
        return tuple(Group(name, members) for (members, _), name in self._names.items())
