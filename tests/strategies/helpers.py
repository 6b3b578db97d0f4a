"""Contracts to draw from, and what Hypothesis's own quality tests are made of: `minimal` and `find_any`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis.strategies import SearchStrategy

from corpus.case import OPS, REDUCE_OPS, REDUCING, Case, TensorSpec
from corpus.contract import Contract, OpContract, Promise
from corpus.dtypes import DTYPES, Kind
from strategies.space import Space

_SOURCE = "a contract for tests"
_NUMBERS = tuple(name for name, dtype in DTYPES.items() if dtype.kind is not Kind.OPAQUE)
_INTEGERS = tuple(name for name in _NUMBERS if DTYPES[name].kind in (Kind.SIGNED, Kind.UNSIGNED))
_FLOATS = tuple(name for name in _NUMBERS if DTYPES[name].kind is Kind.FLOAT)
_REAL = tuple(name for name in _NUMBERS if DTYPES[name].kind is not Kind.COMPLEX)

_REDUCTIONS = {
    "sum": _NUMBERS,
    "avg": _FLOATS,
    "max": _REAL,
    "min": _REAL,
    "product": _NUMBERS,
    "band": _INTEGERS,
    "bor": _INTEGERS,
    "bxor": _INTEGERS,
    "premul_sum": ("float32", "bfloat16", "float16"),
}

_UNEVEN = {"all_gather", "gather", "scatter", "reduce_scatter", "all_to_all", "all_to_all_single"}


def _op(name: str) -> OpContract:
    return OpContract(
        _SOURCE,
        dtypes=() if name in REDUCING else tuple(DTYPES),
        reduce_ops=_REDUCTIONS if name in REDUCING else {},
        in_place=name in ("all_reduce", "broadcast", "reduce"),
        uneven=name in _UNEVEN,
    )


GLOO = Contract("gloo", {name: _op(name) for name in OPS}, views=Promise("right", _SOURCE))
"""Like torch.distributed over gloo, with every op, dtype and reduce op."""

_SUMS = {"sum": ("float32", "bfloat16", "float16")}
FRESH = Contract(
    "fresh",
    {
        "all_reduce": OpContract(_SOURCE, reduce_ops=_SUMS, returned=True, async_op=False),
        "all_gather": OpContract(_SOURCE, dtypes=("float32", "bfloat16"), returned=True, async_op=False, min_world=2),
    },
    views=Promise("right or refused", _SOURCE),
)
"""Like vLLM's operators: out of place, outputs returned."""

gloo = Space(backend="gloo", contract=GLOO)
fresh = Space(backend="fresh", contract=FRESH)

assert set(_REDUCTIONS) == set(REDUCE_OPS)


_PHASES = [Phase.generate, Phase.shrink]


class _Found(Exception):
    pass


def minimal(
    strategy: SearchStrategy[Case], wanted: Callable[[Case], bool], *, key: int = 0, examples: int = 2000
) -> tuple[Case, int]:
    """Return the case that Hypothesis shrinks to, and how many distinct cases a campaign would have run for it."""
    last: list[Case] = []
    after: set[Case] = set()

    @seed(key)
    @settings(
        max_examples=examples, database=None, deadline=None, suppress_health_check=[], print_blob=False, phases=_PHASES
    )
    @given(strategy)
    def run(case: Case) -> None:
        if last:
            after.add(case)
        if wanted(case):
            last.append(case)
            raise _Found

    try:
        run()
    except _Found:
        return last[-1], len(after)
    raise AssertionError(f"not found in {examples} examples")


def draws(strategy: SearchStrategy[Any], *, key: int = 0, examples: int = 300) -> list[Any]:
    """Return what a round of `examples` draws; a health check that fails fails here."""
    found: list[Any] = []

    @seed(key)
    @settings(max_examples=examples, database=None, deadline=None, phases=[Phase.generate])
    @given(strategy)
    def run(value: Any) -> None:
        found.append(value)

    run()
    return found


def find_any(
    strategy: SearchStrategy[Case], wanted: Callable[[Case], bool], *, key: int = 0, examples: int = 300
) -> Case:
    """Return a case for which `wanted` holds, among `examples`."""
    found: list[Case] = []

    @seed(key)
    @settings(max_examples=examples, database=None, deadline=None, phases=[Phase.generate])
    @given(strategy)
    def run(case: Case) -> None:
        if wanted(case):
            found.append(case)
            raise _Found

    try:
        run()
    except _Found:
        return found[-1]
    raise AssertionError(f"not found in {examples} examples")


def specs(case: Case) -> Iterator[TensorSpec]:
    """Every spec that some rank gives some tensor."""
    return (spec for _, spec in case.specs())


__all__ = ["FRESH", "GLOO", "HealthCheck", "draws", "find_any", "fresh", "gloo", "minimal", "specs"]
