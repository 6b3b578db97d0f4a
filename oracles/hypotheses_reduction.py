"""What a reduction may have done instead: nothing, another one, or the right one over other contributions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import combinations
from typing import Any, Final, Literal

import numpy as np

from corpus.case import REDUCE_OPS
from corpus.contract import Promise
from corpus.dtypes import Kind
from corpus.payload import Bits
from oracles.expectation import Part, gathered
from oracles.legal import EXTREMA, SUMS, Reduction
from oracles.rounding import values
from oracles.text import counted, listed, ranks_text
from oracles.wrong import Guess, Wrong

SETS: Final = 600
"""Sets of ranks that are tried, the smallest first; every one of nine ranks."""

PRECISE: Final = 7
"""Bits of mantissa from which on two divisors are told apart whatever the rounding (those of bfloat16)."""

PAIRS: Final = 600
"""Pairs of ranks that are tried; every one of 24 ranks."""


def own_input(wrong: Wrong) -> Guess | None:
    """A reduction that did not happen."""
    return _input_of(wrong, wrong.rank, "this rank's own input")


def other_input(wrong: Wrong) -> Guess | None:
    """Another rank's input in place of the reduction of all."""
    ranks = wrong.case.ranks(wrong.call)
    for rank in ranks:
        found = _input_of(wrong, rank, f"rank {rank}'s input") if rank != wrong.rank else None
        if found is not None:
            return Guess(found.text, len(ranks))
    return None


def _input_of(wrong: Wrong, rank: int, whose: str) -> Guess | None:
    if wrong.call.reduce_op is None:
        return None
    for part, inside, offsets in wrong.by_part():
        place = _place(part, rank)
        if place is None or len(part.tables) == 1:
            return None
        if not np.array_equal(wrong.observed[inside], part.tables[place][part.places(offsets)]):
            return None
    return Guess(wrong.left_alone("reduced", whose) if wrong.which else f"no reduction: it holds {whose}")


def _place(part: Part, rank: int) -> int | None:
    """Where a rank stands among the sources of a piece."""
    return next((place for place, source in enumerate(part.piece.sources) if source.rank == rank), None)


def other_reduction(wrong: Wrong) -> Guess | None:
    """Another reduce op than the one asked for."""
    for op in REDUCE_OPS:
        if op not in (wrong.call.reduce_op, "premul_sum") and wrong.reduced(
            lambda reduction, sources, op=op: (replace(reduction, op=op), sources)  # type: ignore[misc]
        ):
            return Guess(f"another reduce op: {wrong.holding} {op}, not {wrong.call.reduce_op}", len(REDUCE_OPS))
    return None


def other_factor(wrong: Wrong) -> Guess | None:
    """A premultiplied sum with another factor."""
    factor = wrong.call.factor
    if wrong.call.reduce_op != "premul_sum" or factor is None:
        return None
    others = {0.0: "0", 1.0: "1", factor * factor: f"{factor * factor:g}, its square"}
    if factor:
        others[1 / factor] = f"{1 / factor:g}, its reciprocal"
    others[float(int(factor))] = f"{int(factor)}"
    for other, text in others.items():
        if other != factor and wrong.reduced(
            lambda reduction, sources, other=other: (replace(reduction, factor=other), sources)  # type: ignore[misc]
        ):
            return Guess(f"the factor {factor:g} is read as {text}{wrong.where}", len(others))
    return None


def other_divisor(wrong: Wrong) -> Guess | None:
    """A mean, or a sum, divided by another number than it should be."""
    asked = wrong.call.reduce_op
    if asked not in ("sum", "avg"):
        return None
    ranks = len(wrong.parts[0].tables)
    right = ranks if asked == "avg" else 1
    known = {
        wrong.buffer.dtype.itemsize: "the size of an element",
        wrong.buffer.spec.numel: "the number of elements",
        right * ranks: "twice by the number of ranks" if asked == "avg" else "the number of ranks",
        wrong.case.world.size: "the size of the world",
    }
    fmt = wrong.buffer.dtype.format
    # How a wrong division rounds is anybody's guess.
    explains = wrong.near if fmt is not None and fmt.mantissa >= PRECISE else wrong.reduced
    for divisor in dict.fromkeys([*known, *_divisors(wrong)]):
        if divisor in (0, right) or divisor > 1 << 40:
            continue
        if explains(
            lambda reduction, sources, divisor=divisor: (  # type: ignore[misc]
                replace(reduction, op="avg", ranks=divisor),
                sources,
            )
        ):
            text = f", {known[divisor]}" if known.get(divisor) else ""
            instead = f"{',' * (divisor in known)} instead of {right}" if asked == "avg" else ""
            return Guess(f"{wrong.which or 'it'} {_is(wrong)} divided by {divisor:,}{text}{instead}", 64)
    return None


def _is(wrong: Wrong) -> str:
    return "are" if wrong.which and not wrong.one else "is"


def _divisors(wrong: Wrong) -> list[int]:
    """The whole number by which the sums are divided at the sampled places, if they are by one."""
    dtype = wrong.buffer.dtype
    if dtype.kind is not Kind.FLOAT or dtype.format is None:
        return []
    for part, inside, offsets in wrong.by_part():
        sources = [values(words, dtype.format, np.float64) for words in gathered(part.tables, part.places(offsets))]
        with np.errstate(all="ignore"):
            ratios = np.sum(sources, axis=0) / values(wrong.observed[inside], dtype.format, np.float64)
        ratios = ratios[np.isfinite(ratios)]
        middle = float(np.median(ratios)) if len(ratios) else 0.0
        return [round(middle)] if 1 <= middle < 1 << 40 else []
    return []


def missing(wrong: Wrong) -> Guess | None:
    """The contributions of some ranks left out."""
    ranks = [source.rank for source in wrong.parts[0].piece.sources]
    for tried, lost in enumerate(_sets(len(ranks), len(ranks) - 1), 1):

        def without(
            reduction: Reduction, sources: list[Bits], lost: Sequence[int] = lost
        ) -> tuple[Reduction, list[Bits]] | None:
            return reduction, [source for place, source in enumerate(sources) if place not in lost]

        if wrong.reduced(without):
            if 2 * len(lost) > len(ranks):
                kept = [rank for place, rank in enumerate(ranks) if place not in lost]
                return Guess(f"only {_contributions(kept)} in it{wrong.where}", tried)
            return Guess(f"{_contributions([ranks[place] for place in lost])} missing{wrong.where}", tried)
    return None


def doubled(wrong: Wrong) -> Guess | None:
    """The contributions of some ranks counted twice."""
    if wrong.call.reduce_op in EXTREMA | {"band", "bor"}:
        return None
    ranks = [source.rank for source in wrong.parts[0].piece.sources]
    for tried, twice in enumerate(_sets(len(ranks), len(ranks)), 1):
        if wrong.reduced(
            lambda reduction, sources, twice=twice: (  # type: ignore[misc]
                reduction,
                [*sources, *(sources[place] for place in twice)],
            )
        ):
            every = len(twice) == len(ranks)
            whose = "every contribution is" if every else _contributions([ranks[place] for place in twice])
            return Guess(f"{whose} counted twice{wrong.where}", tried)
    return None


def replaced(wrong: Wrong) -> Guess | None:
    """One rank's contribution left out and another's counted twice."""
    ranks = [source.rank for source in wrong.parts[0].piece.sources]
    pairs = [(lost, twice) for lost in range(len(ranks)) for twice in range(len(ranks)) if lost != twice]
    for tried, (lost, twice) in enumerate(pairs[:PAIRS], 1):
        if wrong.reduced(
            lambda reduction, sources, lost=lost, twice=twice: (  # type: ignore[misc]
                reduction,
                [*sources[:lost], sources[twice], *sources[lost + 1 :]],
            )
        ):
            return Guess(f"rank {ranks[twice]}'s contribution stands in for rank {ranks[lost]}'s{wrong.where}", tried)
    return None


def _contributions(ranks: Sequence[int]) -> str:
    """ "rank 1's contribution is", "the contributions of ranks 0 and 2 are"."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}'s contribution is"
    return f"the contributions of {ranks_text(ranks) if len(ranks) <= 8 else counted(len(ranks), 'rank')} are"


def _sets(count: int, largest: int) -> Iterator[tuple[int, ...]]:
    """Sets of places below `count`, the smallest first; where there are too many, the smaller ones and the largest."""
    left = SETS
    for size in range(1, largest + 1):
        for chosen in combinations(range(count), size):
            if size < largest and left <= 0:
                break
            left -= 1
            yield chosen


def other_contract(wrong: Wrong) -> Guess | None:
    """A result that is legal under another contract than the backend's."""
    accumulation: Promise[Literal["native", "native or wide"]] = Promise("native or wide", "")
    either: Promise[Literal["propagates", "either", "unspecified"]] = Promise("either", "")
    may_flush: Promise[Literal["exact", "may flush"]] = Promise("may flush", "")
    others: list[tuple[dict[str, Any], str]] = [
        ({"accumulation": accumulation}, "the partial sums were kept in a wider format, and not rounded"),
        ({"nan_extremum": either}, f"a NaN among the inputs is passed over by the {wrong.call.reduce_op}"),
        ({"subnormals": may_flush}, "subnormal numbers are flushed to zero"),
    ]
    ways = {
        "sum/n": "the sum is divided by the number of ranks",
        "sum*(1/n)": "the sum is multiplied by a rounded 1/n",
        "pre/n": "each input is divided before the additions",
        "pre*(1/n)": "each input is multiplied by a rounded 1/n before the additions",
    }
    promised = wrong.contents.contract.average.value
    if wrong.call.reduce_op == "avg":
        legal = listed([form for form in ways if form in promised])
        others += [({"average": Promise((form,), "")}, f"{text}, not {legal}") for form, text in ways.items()]
    if wrong.call.reduce_op not in SUMS | EXTREMA | {"product"}:
        return None
    for changes, text in others:
        contract = replace(wrong.contents.contract, **changes)
        if contract != wrong.contents.contract and wrong.reduced(
            lambda reduction, sources, contract=contract: (  # type: ignore[misc]
                replace(reduction, contract=contract),
                sources,
            )
        ):
            return Guess(text, len(others))
    return None
