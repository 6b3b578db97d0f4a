"""Contracts to draw from, and what Hypothesis's own quality tests are made of: `minimal` and `find_any`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import TypeVar

from hypothesis import Phase, given, seed, settings
from hypothesis.strategies import SearchStrategy

from corpus.case import OPS, REDUCING, Case, TensorSpec
from corpus.contract import Contract, OpContract, Promise
from corpus.dtypes import DTYPES, Kind
from strategies.space import Space

T = TypeVar("T")

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


GLOO = Contract(
    "gloo",
    {name: _op(name) for name in OPS},
    views=Promise("right", _SOURCE),
    permuted_groups=Promise(True, _SOURCE),
)
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

gloo_space = Space(backend="gloo", contract=GLOO)
fresh_space = Space(backend="fresh", contract=FRESH)


class _Found(Exception):
    pass


def _settings(examples: int, *phases: Phase) -> settings:
    """Reproducible: nothing stored, no clock. One bug is sought, and shrunk as soon as it is found."""
    return settings(max_examples=examples, database=None, deadline=None, phases=phases, report_multiple_bugs=False)


def minimal(
    strategy: SearchStrategy[Case], wanted: Callable[[Case], bool], *, key: int = 0, examples: int = 2000
) -> tuple[Case, int]:
    """Return the case that Hypothesis shrinks to, and how many other cases it tried on the way there."""
    failing: list[Case] = []
    tried: set[Case] = set()

    @seed(key)
    @_settings(examples, Phase.generate, Phase.shrink)
    @given(strategy)
    def run(case: Case) -> None:
        if failing:
            tried.add(case)
        if wanted(case):
            failing.append(case)
            raise _Found

    with suppress(_Found):
        run()
    assert failing, f"not found in {examples} examples"
    return failing[-1], len(tried - {failing[-1]})


def draws(strategy: SearchStrategy[T], *, key: int = 0, examples: int = 300) -> list[T]:
    """Return what a round of `examples` draws. A health check that fails, fails here."""
    found: list[T] = []

    @seed(key)
    @_settings(examples, Phase.generate)
    @given(strategy)
    def run(value: T) -> None:
        found.append(value)

    run()
    return found


def find_any(
    strategy: SearchStrategy[Case], wanted: Callable[[Case], bool], *, key: int = 0, examples: int = 300
) -> Case:
    """Return a case for which `wanted` holds, among `examples`."""
    found: list[Case] = []

    @seed(key)
    @_settings(examples, Phase.generate)
    @given(strategy)
    def run(case: Case) -> None:
        if wanted(case):
            found.append(case)
            raise _Found

    with suppress(_Found):
        run()
    assert found, f"not found in {examples} examples"
    return found[-1]


def specs(case: Case) -> Iterator[TensorSpec]:
    """Every spec that some rank gives some tensor."""
    return (spec for _, spec in case.specs())
