"""The two functions that a test needs: draw a case, check it."""

from __future__ import annotations

import atexit
import importlib
from functools import cache

from hypothesis.strategies import SearchStrategy

from corpus.case import DEFAULT_MEMORY, Case
from fuzz.backends import load
from fuzz.campaign import Budget
from fuzz.runner import Outcome, Runner
from fuzz.session import Layouts, Session, space
from strategies.cases import cases as _cases


def cases(
    *,
    backend: str = "gloo",
    world: int | tuple[int, ...] = (2, 3, 4),
    flags: tuple[tuple[str, str], ...] = (),
    fault: str | None = None,
    ops: tuple[str, ...] | None = None,
    dtypes: tuple[str, ...] | None = None,
    layouts: Layouts = "any",
    memory: int = DEFAULT_MEMORY,
) -> SearchStrategy[Case]:
    """Return a Hypothesis strategy for cases of a backend.

    `world`: one world size, or those to draw from. `flags`: explicitly set flags, as (name, value). `ops`, `dtypes`:
    only these. `layouts`: "any" or "contiguous". `memory`: bytes of tensors that one rank may hold.

    Raises:
        NotRun, UnknownBackend, UnknownFault: what is asked for does not exist; one line.
    """
    session = Session(
        backend=backend,
        worlds=(world,) if isinstance(world, int) else world,
        budget=Budget(),
        flags=tuple(sorted(flags)),
        fault=fault,
        ops=ops,
        dtypes=dtypes,
        layouts=layouts,
        memory=memory,
    )
    return _cases(space(session, load(backend)))


def check(case: Case) -> Outcome:
    """Run a case on ranks that are kept between calls; raise what the oracles found.

    Raises:
        Failure: there was one failure; ExceptionGroup: there were several.
        NotRun: this version or this machine does not run such a case.
    """
    return _runner().check(case)


@cache
def _runner() -> Runner:
    # Exit handlers run last in, first out: Ray's own must not end it before we have ended our ranks.
    importlib.import_module("ray")
    runner = Runner()
    atexit.register(runner.close)
    return runner
