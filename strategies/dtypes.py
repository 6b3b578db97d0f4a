"""Element types, in the order in which a person wants them shrunk."""

from __future__ import annotations

from hypothesis.strategies import DrawFn

from strategies.choose import choose


def draw_dtype(draw: DrawFn, accepted: tuple[str, ...]) -> str:
    """Draw one of the dtypes that a contract takes, which stand in corpus order (float32 first)."""
    return choose(draw, "dtype", accepted)
