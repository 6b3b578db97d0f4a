"""One `cclfuzz run`: options in, a campaign over a run folder, findings out."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

from corpus.flags import Scope
from fuzz import events
from fuzz.backends.base import Backend
from fuzz.campaign import Budget, Campaign
from fuzz.faults import wrap
from fuzz.report.console import Console
from fuzz.report.folder import RunFolder
from fuzz.runner import NotRun, Runner
from strategies.space import Space

Layouts: TypeAlias = Literal["any", "contiguous"]


@dataclass(frozen=True, slots=True)
class Session:
    """What a person asked for. `memory` in bytes a rank; `ops`, `dtypes` None: all that the backend has.

    `against`: a second backend that runs the same programs. `illegal`: draw programs with a mistake in them.
    """

    backend: str
    worlds: tuple[int, ...]
    budget: Budget
    flags: tuple[tuple[str, str], ...] = ()
    fault: str | None = None
    seed: int = 0
    ops: tuple[str, ...] | None = None
    dtypes: tuple[str, ...] | None = None
    layouts: Layouts = "any"
    memory: int = 1 << 30
    ray_address: str | None = None
    against: str | None = None
    illegal: bool = False
    out: Path = Path("runs")


def space(session: Session, backend: Backend) -> Space:
    """Return what may be drawn for a session.

    Raises:
        NotRun: it asks for what the backend does not have; one line.
        UnknownFault: there is no such fault.
    """
    wrap(backend, session.fault)
    if session.illegal and (session.fault or session.against):
        raise NotRun("--illegal: no fault is seeded in illegal programs, and no second backend runs them")
    known = {flag.name: flag for flag in backend.flags}
    for name, _ in session.flags:
        if name not in known:
            raise NotRun(f"flag {name}: {backend.name} has {', '.join(known) or 'no flags'}")
    given = dict(session.flags)
    try:
        return Space(
            backend=backend.spec,
            contract=backend.contract(given),
            thresholds=backend.thresholds,
            flags=tuple(flag for flag in backend.flags if flag.scope is Scope.CALL and flag.name not in given),
            set_flags=session.flags,
            fault=session.fault,
            worlds=session.worlds,
            ops=session.ops,
            dtypes=session.dtypes,
            layouts=session.layouts,
            memory=session.memory,
            memory_kind=backend.memory(),
            illegal=session.illegal,
            modes=backend.modes if session.fault is None else ("eager",),
        )
    except ValueError as error:
        raise NotRun(str(error)) from None


def _file_name(spec: str) -> str:
    """A backend's name as that of a folder; that of a file is told from others of its kind by a hash."""
    plain = re.sub(r"[^A-Za-z0-9@._-]", "-", spec)
    return plain if plain == spec else f"{plain[-64:]}-{hashlib.sha256(spec.encode()).hexdigest()[:8]}"


def _check_second(runner: Runner, session: Session) -> None:
    """Raise NotRun where the second backend is the first, or cannot run here."""
    second = runner.backend(str(session.against))
    reason = second.unavailable()
    if second.spec == session.backend:
        raise NotRun(f"--against {second.spec}: another backend than --backend")
    if reason is not None and session.ray_address is None:
        raise NotRun(f"--against {second.spec} is not available: {reason}")


def fuzz(session: Session, console: Console | None = None) -> events.Finished:
    """Run a campaign and return its last event.

    Raises:
        NotRun, UnknownBackend, UnknownFault: the session asks for what there is not; one line.
        InternalError: we failed.
    """
    shown = console or Console()
    with Runner(ray_address=session.ray_address, memory=session.memory) as runner:
        backend = runner.backend(session.backend)
        drawn = space(session, backend)
        reason = backend.unavailable()
        if reason is not None and session.ray_address is None:
            raise NotRun(f"{backend.spec} is not available: {reason}")
        if session.against is not None:
            _check_second(runner, session)
        if session.ray_address is not None:
            runner.connect()
        try:
            folder = RunFolder(session.out)
        except OSError as error:
            raise NotRun(f"--out {session.out}: {error.strerror or error}") from error

        def listen(event: events.Event) -> None:
            folder.record(event)
            shown.listen(event)

        kind = "illegal" if session.illegal else session.fault
        database = session.out / "examples" / "+".join(filter(None, (_file_name(backend.spec), kind)))
        campaign = Campaign(
            runner,
            drawn,
            budget=session.budget,
            seed=session.seed,
            database=database,
            listener=listen,
            store=folder,
            against=session.against,
        )
        try:
            return campaign.run(str(folder.path))
        finally:
            folder.close()
