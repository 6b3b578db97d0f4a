"""What can be said of a failure that does not happen every time: its rate, an interval, and how often to look."""

from __future__ import annotations

import math
from collections.abc import Callable

CONFIDENCE = 0.95
"""Of intervals, and of not missing a failure."""

MOST_REPEATS = 20
"""Runs that one candidate of the shrinker may have, however rare the failure is."""

_HALVINGS = 60
"""Of [0, 1], until a double holds no finer answer."""


def interval(again: int, runs: int, confidence: float = CONFIDENCE) -> tuple[float, float]:
    """The Clopper-Pearson interval of a rate of which `again` of `runs` were seen: it covers it at least that often.

    C. J. Clopper and E. S. Pearson, Biometrika 26 (1934): the rates under which neither so many nor so few failures
    have a chance below (1 - confidence) / 2.

    Raises:
        ValueError: there were no runs, or more failures than runs.
    """
    if not 0 <= again <= runs or runs == 0:
        raise ValueError(f"{again} of {runs} runs")
    tail = (1 - confidence) / 2
    low = 0.0 if again == 0 else _crossing(lambda rate: at_least(again, runs, rate) >= tail)
    high = 1.0 if again == runs else _crossing(lambda rate: at_least(again + 1, runs, rate) >= 1 - tail)
    return low, high


def at_least(least: int, runs: int, rate: float) -> float:
    """The chance of `least` failures or more in `runs` runs."""
    return math.fsum(math.comb(runs, k) * rate**k * (1 - rate) ** (runs - k) for k in range(least, runs + 1))


def _crossing(above: Callable[[float], bool]) -> float:
    """Where a condition on a rate, false at 0 and true at 1, becomes true."""
    low, high = 0.0, 1.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if above(middle) else (middle, high)
    return (low + high) / 2


def repeats(rate: float, confidence: float = CONFIDENCE, most: int = MOST_REPEATS) -> int:
    """How many runs show a failure of this rate at least once with this confidence; at most `most`."""
    if rate >= 1:
        return 1
    if rate <= 0:
        return most
    return min(most, math.ceil(math.log1p(-confidence) / math.log1p(-rate)))


def describe(again: int, runs: int) -> str:
    """ "in 9 of 30 runs (30 %, 95 % interval 15 % to 49 %)"; of what happens every time only how often."""
    if again == runs:
        return f"in {again} of {runs} re-runs"
    low, high = interval(again, runs)
    return (
        f"in {again} of {runs} runs ({_percent(again / runs)}, {_percent(CONFIDENCE)} interval "
        f"{_percent(low)} to {_percent(high)})"
    )


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"
