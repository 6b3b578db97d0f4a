"""Flags that a backend reads at every call: unset, or one of the values worth trying."""

from __future__ import annotations

from hypothesis.strategies import DrawFn

from corpus.flags import Flag
from strategies.choose import choose


def draw_flags(
    draw: DrawFn, flags: tuple[Flag, ...], set_flags: tuple[tuple[str, str], ...]
) -> tuple[tuple[str, str], ...]:
    """Draw a value, or none, for each flag; `set_flags` stand, and are not drawn. Sorted by name."""
    chosen: dict[str, str] = {}
    for flag in flags:
        value = choose(draw, flag.name, (None, *flag.values))
        if value is not None:
            chosen[flag.name] = value
    return tuple(sorted({**chosen, **dict(set_flags)}.items()))
