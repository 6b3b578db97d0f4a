"""Programs: calls over distinct tensors, legal and within the memory budget by construction.

Each call is drawn as a flat list of decisions, nearly the same for every op, and only then built into tensors. So the
shrinker can turn one call into a simpler one, or take a whole call away, without disturbing the other decisions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, TypeAlias

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn

from corpus.case import Call, Group, Tensor, TensorSpec
from corpus.contract import OpContract
from corpus.dtypes import DTYPES
from strategies.boundaries import Role, draw_size, sizes
from strategies.choose import choose, seldom, up_to
from strategies.dtypes import draw_dtype
from strategies.layouts import Plan, draw_plan, lay_out
from strategies.payloads import draw_payload, payloads
from strategies.shapes import draw_arrangement, shape_of
from strategies.space import Menu, Space
from strategies.worlds import Groups, Members, draw_members

Shape: TypeAlias = tuple[int, ...]
Rows: TypeAlias = Callable[[int, int], int]
"""How many rows (of dimension 0) group rank i has for group rank j."""

IN_PLACE: Final = frozenset({"all_reduce", "broadcast", "reduce"})
_WHOLE: Final = frozenset({"all_gather_into_tensor", "reduce_scatter_tensor", "all_to_all_single"})
_GATHERING: Final = frozenset({"all_gather", "gather"})
_SCATTERING: Final = frozenset({"reduce_scatter", "scatter"})
_LISTS: Final = _GATHERING | _SCATTERING | {"all_to_all"}
_ROOTED: Final = frozenset({"broadcast", "reduce", "gather", "scatter", "send_recv"})
_FACTORS: Final = (2.0, 0.5)
"""Factors of premul_sum: powers of two round nothing."""


@dataclass(frozen=True, slots=True)
class Decisions:
    """One call as it was drawn. `size` is in elements; `boundaries.Role` says of which tensor.

    `first` and `second` plan the inputs and the outputs; group rank `swapped` has them the other way round.
    """

    op: str
    members: Members
    reduce_op: str | None
    dtype: str
    shape: Shape
    first: Plan
    second: Plan
    swapped: int | None
    payload: str
    async_op: bool
    again: Tensor | None = None
    variant: int = 0
    root: int | None = None
    peer: int | None = None
    factor: float | None = None


@dataclass(slots=True)
class Program:
    """A program as it grows: calls, tensors, the groups they name, and inputs that nobody writes."""

    space: Space
    world: int
    memory: int
    """Bytes a rank for the tensors of one call."""
    calls: list[Call] = field(default_factory=list)
    tensors: list[Tensor] = field(default_factory=list)
    groups: Groups = field(default_factory=Groups)
    readable: list[Tensor] = field(default_factory=list)


def program(draw: DrawFn, space: Space, world: int, menu: Menu) -> tuple[tuple[Tensor, ...], tuple[Call, ...], tuple[Group, ...]]:
    """Draw a program for a world of `world` ranks: its tensors, its calls, and the groups that they use."""
    count = choose(draw, _counts(space.max_calls))
    grown = Program(space, world, space.memory // count)
    ops = _weighted(menu)
    for _ in range(count):
        _add(grown, draw(_call(grown, menu, ops)))
    return tuple(grown.tensors), tuple(grown.calls), grown.groups.all()


def _counts(most: int) -> tuple[int, ...]:
    return (*(1,) * (3 * most), *range(2, most + 1))


def _weighted(menu: Menu) -> tuple[str, ...]:
    """Ops in corpus order; barriers, which compute nothing, are rare."""
    return tuple(op for op in menu for _ in range(1 if op == "barrier" else 4))
