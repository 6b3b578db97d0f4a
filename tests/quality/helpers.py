"""Runs a whole campaign in this process, with nothing kept between runs."""

from __future__ import annotations

from dataclasses import dataclass, field

from fuzz import events
from fuzz.campaign import Budget, Campaign
from fuzz.finding import Finding
from fuzz.runner import Runner
from fuzz.session import Layouts, Session, space


@dataclass
class Memory:
    """A store that keeps findings in memory."""

    suspected: list[Finding] = field(default_factory=list)
    kept: list[Finding] = field(default_factory=list)
    discarded: int = 0

    def suspect(self, finding: Finding) -> None:
        self.suspected.append(finding)

    def keep(self, finding: Finding) -> str:
        self.kept.append(finding)
        return finding.key

    def discard(self) -> None:
        self.discarded += 1


@dataclass
class Ran:
    findings: list[Finding]
    events: list[events.Event]
    finished: events.Finished

    @property
    def digests(self) -> list[str]:
        """Digests of the drawn cases, in order."""
        return [
            event.digest for event in self.events if isinstance(event, events.CaseRun) and event.phase == "generate"
        ]


def campaign(
    runner: Runner,
    *,
    backend: str = "gloo",
    worlds: tuple[int, ...] = (2,),
    fault: str | None = None,
    examples: int = 100,
    seed: int = 0,
    ops: tuple[str, ...] | None = None,
    dtypes: tuple[str, ...] | None = None,
    layouts: Layouts = "any",
    flags: tuple[tuple[str, str], ...] = (),
    memory: int = 1 << 28,
) -> Ran:
    """Fuzz, and return what was found and every event."""
    session = Session(
        backend=backend,
        worlds=worlds,
        budget=Budget(examples=examples),
        flags=flags,
        fault=fault,
        seed=seed,
        ops=ops,
        dtypes=dtypes,
        layouts=layouts,
        memory=memory,
    )
    heard: list[events.Event] = []
    store = Memory()
    ran = Campaign(
        runner,
        space(session, runner.backend(backend)),
        budget=session.budget,
        seed=seed,
        database=None,
        listener=heard.append,
        store=store,
    )
    finished = ran.run()
    return Ran(store.kept, heard, finished)
