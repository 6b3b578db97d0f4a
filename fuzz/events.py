"""What happens in a campaign, as one typed stream. Whoever shows or records it only listens."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from fuzz.finding import Finding


@dataclass(frozen=True, slots=True)
class Started:
    """The campaign begins. `budget` in words."""

    backend: str
    worlds: tuple[int, ...]
    seed: int
    budget: str
    folder: str


@dataclass(frozen=True, slots=True)
class CaseRun:
    """One case ran. `phase` is "generate", "shrink", "reuse" or "examine"; `verdict` in one or two words."""

    digest: str
    phase: str
    verdict: str
    op: str
    seconds: float
    draw_seconds: float


@dataclass(frozen=True, slots=True)
class Suspected:
    """A case failed for the first time; it is on disk, and shrinking begins."""

    op: str
    kind: str
    digest: str


@dataclass(frozen=True, slots=True)
class Found:
    """A distinct bug, or something distinct that is only noted, shrunk and written to `folder`."""

    finding: Finding
    folder: str


@dataclass(frozen=True, slots=True)
class Seen:
    """A bug that was found before in this campaign showed again under another case."""

    key: str


@dataclass(frozen=True, slots=True)
class Incident:
    """Something happened to a rank that no library does by itself and that did not happen again, or a rank was lost."""

    text: str
    digest: str


@dataclass(frozen=True, slots=True)
class Finished:
    """The campaign is over. Counts of cases by verdict; `interrupted` where a person stopped it.

    `drawn` of the `cases` were drawn afresh; the others are those of shrinking, re-runs, variations and earlier runs.
    `lost` of them have no verdict, because our own side failed. `findings` are bugs, `noted` is what else was found.
    `power`: the mean detection power where only a bound judged, None where none did. `folds`: the orders of additions
    that were seen, with the number of cases. Where a second backend was asked, it ran `compared` cases too,
    `not_comparable` are not its programs, and of `both_legal_different` both results are legal and differ.
    """

    cases: int
    drawn: int
    lost: int
    findings: int
    refused: int
    unspecified: int
    bound_only: int
    incidents: int
    rebuilds: int
    seconds: float
    draw_seconds: float
    interrupted: bool
    noted: int = 0
    power: float | None = None
    folds: tuple[tuple[str, int], ...] = ()
    against: str | None = None
    compared: int = 0
    not_comparable: int = 0
    both_legal_different: int = 0


Event = Started | CaseRun | Suspected | Found | Seen | Incident | Finished
Listener = Callable[[Event], None]
