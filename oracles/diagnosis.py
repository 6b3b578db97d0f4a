"""Says what a wrong result is, where one hypothesis explains every wrong element that is looked at.

Hypotheses stand in a list, the plainest first; the first that explains all of a sample wins: with the
elements that are right, if one can, for the wrong ones alone may show less of what happened. They only speak: no
verdict depends on them. In a short dtype a few elements are explained by chance, so what a hypothesis says is weighed:
the bits that it had to get right, less those that the choice among its alternatives gave away.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

from oracles import hypotheses_calls as calls
from oracles import hypotheses_format as formats
from oracles import hypotheses_memory as memory
from oracles import hypotheses_place as place
from oracles import hypotheses_reduction as reduction
from oracles.differences import differences
from oracles.wrong import Guess, Wrong

CERTAIN: Final = 16.0
"""Bits of evidence from which on a hypothesis, of two or more wrong elements, is stated as it is."""

SILENT: Final = 4.0
"""Bits of evidence below which a hypothesis is worth nothing."""


def explain(wrong: Wrong) -> str:
    """Return one sentence without its full stop: the hypothesis that explains all of the sample, or the differences."""
    for part in wrong.blocks():
        for hypothesis in HYPOTHESES:
            guess = hypothesis(part)
            if guess is None:
                continue
            evidence = part.evidence - math.log2(guess.among)
            if evidence >= CERTAIN and len(part.places) > 1:
                return guess.text
            if evidence >= SILENT:
                return f"consistent with: {guess.text}"
    return f"no hypothesis explains it; {differences(wrong)}"


HYPOTHESES: Final[tuple[Callable[[Wrong], Guess | None], ...]] = (
    # First, because only part of what it explains is an input that was not reduced.
    memory.base_storage,
    reduction.own_input,
    memory.unwritten,
    reduction.other_factor,
    reduction.other_reduction,
    reduction.other_input,
    reduction.missing,
    reduction.doubled,
    reduction.replaced,
    reduction.other_divisor,
    place.other_rank,
    place.other_output,
    calls.other_call_result,
    calls.other_call_data,
    calls.stale_contribution,
    reduction.other_contract,
    formats.lower_precision,
    formats.integers,
    formats.other_dtype,
    formats.byte_order,
    memory.constant,
    place.shifted,
    place.misread,
)
