"""Cases: everything drawn in the order in which a person wants it shrunk.

Fewer ranks, fewer calls; in each call the plainest op, group, reduce op and dtype, fewest elements, one dimension,
contiguous, the same on all ranks, "index" payload; then no flags, and seed 0. Hypothesis prefers short lists of
choices, then small early choices, so this order is the order of preference.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

from corpus.case import Case, World
from corpus.meaning import overwrites
from strategies.choose import choose
from strategies.flags import draw_flags
from strategies.illegal import illegal_cases
from strategies.programs import draw_program
from strategies.space import Menu, Space
from strategies.worlds import draw_size

SEEDS: Final = range(256)
"""Seeds of a case: as many payloads as are worth telling apart, in a number that a person can read."""

_PLAINLY: Final = 5
"""Times that a program is run call by call for each time in another mode."""


def cases(space: Space) -> SearchStrategy[Case]:
    """Return a strategy for cases in a space: each legal, or none where it asks for that, and within the memory budget.

    Raises:
        ValueError: the space asks for illegal programs, and has no two ranks that could disagree.
    """
    if space.illegal:
        return illegal_cases(space)
    menus = {size: menu for size in sorted(set(space.worlds)) if (menu := space.menu(size))}
    return _cases(space, menus)


@st.composite
def _cases(draw: DrawFn, space: Space, menus: dict[int, Menu]) -> Case:
    size = draw_size(draw, tuple(menus))
    program = draw_program(draw, space, size, menus[size])
    case = Case(
        backend=space.backend,
        world=World(size, program.groups.all()),
        tensors=program.tensors,
        program=program.calls,
        flags=draw_flags(draw, space.flags, space.set_flags),
        fault=space.fault,
        seed=choose(draw, "seed", SEEDS),
        relations=program.relations,
    )
    if len(space.modes) == 1:
        return case
    # Running a program as a whole is ten times as slow. It is looked at once, at its end.
    mode = choose(draw, "mode", (*(space.modes[0],) * _PLAINLY, *space.modes[1:]))
    return case if mode == case.mode or overwrites(case) else replace(case, mode=mode)
