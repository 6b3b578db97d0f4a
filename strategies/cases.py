"""Cases: everything drawn in the order in which a person wants it shrunk.

Fewer ranks, fewer calls; in each call the plainest op, group, reduce op and dtype, fewest elements, one dimension,
contiguous, the same on all ranks, "index" payload; then no flags, and seed 0. Hypothesis prefers short lists of
choices, then small early choices, so this order is the order of preference.
"""

from __future__ import annotations

from typing import Final

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

from corpus.case import Case, World
from strategies.choose import choose
from strategies.flags import draw_flags
from strategies.programs import draw_program
from strategies.space import Menu, Space
from strategies.worlds import draw_size

SEEDS: Final = range(256)
"""Seeds of a case: as many payloads as are worth telling apart, in a number that a person can read."""


def cases(space: Space) -> SearchStrategy[Case]:
    """Return a strategy for cases in a space: each legal, and within the memory budget."""
    menus = {size: menu for size in sorted(set(space.worlds)) if (menu := space.menu(size))}
    return _cases(space, menus)


@st.composite
def _cases(draw: DrawFn, space: Space, menus: dict[int, Menu]) -> Case:
    size = draw_size(draw, tuple(menus))
    program = draw_program(draw, space, size, menus[size])
    return Case(
        backend=space.backend,
        world=World(size, program.groups.all()),
        tensors=tuple(program.tensors),
        program=tuple(program.calls),
        flags=draw_flags(draw, space.flags, space.set_flags),
        fault=space.fault,
        seed=choose(draw, "seed", SEEDS),
    )
