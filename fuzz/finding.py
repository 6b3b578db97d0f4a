"""A distinct bug: its minimal case, what the oracles said of it, and how far it reaches."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from corpus.case import DEFAULT_MEMORY, Case, CaseError
from corpus.codec import MAX_TEXT, digest, dumps, from_dict, loads, to_dict
from corpus.traits import IDENTITY, PLAIN, elements, key, traits
from fuzz import flaky
from fuzz.variations import Reach
from oracles.failure import Failure, Verdict

FORMAT = 1


class Standing(StrEnum):
    """What a failure is to a person. Failures of one standing never explain those of another."""

    BUG = "bug"
    """A legal program went wrong."""
    BREACH = "breach"
    """An illegal program broke a cited promise, which is a bug too."""
    ILLEGAL = "illegal"
    """An illegal program was accepted, or refused badly, and nothing is promised."""
    DIVERGENCE = "divergence"
    """Two results differ where nothing is promised."""

    @property
    def bug(self) -> bool:
        """Whether it is called a bug of the library."""
        return self in (Standing.BUG, Standing.BREACH)


def standing(failure: Failure) -> Standing:
    """What a failure is to a person."""
    return _standing(failure.verdict, failure.promise)


def _standing(verdict: Verdict, promise: str) -> Standing:
    if verdict is Verdict.ILLEGAL:
        return Standing.BREACH if promise else Standing.ILLEGAL
    return Standing.DIVERGENCE if verdict is Verdict.DIVERGENCE else Standing.BUG


def name_of(case: Case, failure: Failure) -> str:
    """The name of a bug, or of what is only noted, from its minimal case; also that of its folder."""
    named = key(case, place(case, failure.call), failure.kind)
    what = standing(failure)
    return named if what is Standing.BUG else f"{named}-{what}"


def place(case: Case, call: int) -> int:
    """An index into the case's program, for a failure before its first call or in a rank's own longer program."""
    return min(max(call, 0), len(case.program) - 1)


@dataclass(frozen=True, slots=True)
class Finding:
    """One bug, or one thing that is only noted (`standing` says which).

    `failures` are `Failure.to_json()` dictionaries, the first one is what was shrunk. `again` of `runs` re-runs of the
    minimal case failed in the same way. `shrunk` is False where a person stopped before the end. `also` holds traits
    (name, value) under which other cases turned out to be this bug. `agrees` says what another backend gave on the same
    program, "" where none was asked.
    """

    key: str
    case: Case
    failures: tuple[dict[str, Any], ...]
    kinds: frozenset[str]
    again: int
    runs: int
    reach: Reach
    versions: tuple[tuple[str, str], ...] = ()
    shrunk: bool = True
    also: frozenset[tuple[str, str]] = frozenset()
    agrees: str = ""

    @property
    def primary(self) -> dict[str, Any]:
        """The failure that was shrunk."""
        return self.failures[0]

    @property
    def call(self) -> int:
        """Index of the call that failed."""
        return place(self.case, int(self.primary["call"]))

    @property
    def op(self) -> str:
        """The collective that failed."""
        return self.case.program[self.call].op

    @property
    def title(self) -> str:
        """One line: what, where."""
        return f"{self.case.backend} {self.op}: {self.primary['kind']}" + (" (flaky)" if self.flaky else "")

    @property
    def standing(self) -> Standing:
        """What it is to a person."""
        return _standing(Verdict(self.primary.get("verdict", Verdict.WRONG)), self.primary.get("promise", ""))

    @property
    def bug(self) -> bool:
        """Whether it is called a bug of the library, and not only noted."""
        return self.standing.bug

    @property
    def flaky(self) -> bool:
        """Whether its minimal case does not fail every time."""
        return self.again < self.runs

    @property
    def repeats(self) -> int:
        """How often its repro tries, so that it nearly always shows it."""
        return flaky.repeats(self.again / self.runs) if self.runs else 1

    @property
    def rate(self) -> str:
        """How often its minimal case fails, in words; "" where it was not run again."""
        return f"fails {flaky.describe(self.again, self.runs)}" if self.runs else ""

    def explains(self, case: Case, index: int, kind: str, standing: Standing = Standing.BUG) -> bool:
        """Whether a failure of another case is this bug again.

        The same collective, symptom, standing, layouts and form; and no trait of the case has a value that was seen to
        pass.
        """
        index = place(case, index)
        if self.case.backend != case.backend or case.program[index].op != self.op:
            return False
        if kind not in self.kinds or standing is not self.standing:
            return False
        own = traits(self.case, self.call)
        return not self._too_small(case, index) and all(
            self._reaches(trait, own[trait], value) for trait, value in traits(case, index).items()
        )

    def _reaches(self, trait: str, own: str, value: str) -> bool:
        if (trait, value) in self.also:
            return True
        if trait in IDENTITY:
            return value == own or own in PLAIN[trait]
        return value not in self.reach.passed.get(trait, ())

    def _too_small(self, case: Case, index: int) -> bool:
        """Whether the case has no more elements than the largest variation that passed, below those that failed."""
        fewest = elements(self.case, self.call)
        passed = [int(value) for value in self.reach.passed.get("elements", ()) if int(value) < fewest]
        return elements(case, index) <= max(passed, default=-1)

    def widened(self, case: Case, index: int, kinds: frozenset[str]) -> Finding:
        """Return the finding, reaching the traits of another case that turned out to be the same bug."""
        reach = self.reach
        if self._too_small(case, index):
            reach = replace(reach, passed={name: values for name, values in reach.passed.items() if name != "elements"})
        # Never a layout: a case may need one layout on one rank, and only happen to have another on the next.
        also = self.also | {pair for pair in traits(case, index).items() if pair[0] not in IDENTITY}
        return replace(self, kinds=self.kinds | kinds, reach=reach, also=also)


def to_json(finding: Finding) -> dict[str, Any]:
    """Return a finding as JSON-able dictionaries; `from_json` is its inverse."""
    return {
        "cclfuzz_finding": FORMAT,
        "key": finding.key,
        "digest": digest(finding.case),
        "case": to_dict(finding.case),
        "failures": list(finding.failures),
        "kinds": sorted(finding.kinds),
        "again": finding.again,
        "runs": finding.runs,
        "failed": {trait: list(values) for trait, values in finding.reach.failed.items()},
        "passed": {trait: list(values) for trait, values in finding.reach.passed.items()},
        "versions": [list(pair) for pair in finding.versions],
        "shrunk": finding.shrunk,
        "also": sorted(list(pair) for pair in finding.also),
        "standing": str(finding.standing),
        "agrees": finding.agrees,
    }


def from_json(data: dict[str, Any], memory: int = DEFAULT_MEMORY) -> Finding:
    """Read a finding.

    Raises:
        CaseError: it is not one; one line.
    """
    try:
        if data["cclfuzz_finding"] != FORMAT:
            raise CaseError(f'finding: "cclfuzz_finding" must be {FORMAT}')
        case = from_dict(data["case"], memory)
        if not data["failures"] or not isinstance(data["key"], str):
            raise CaseError("finding: a key and at least one failure")
        return Finding(
            key=str(data["key"]),
            case=case,
            failures=tuple(_failure(failure, case) for failure in data["failures"]),
            kinds=frozenset(str(kind) for kind in data["kinds"]),
            again=int(data["again"]),
            runs=int(data["runs"]),
            reach=Reach(
                {str(trait): tuple(map(str, values)) for trait, values in data["failed"].items()},
                {str(trait): tuple(map(str, values)) for trait, values in data["passed"].items()},
            ),
            versions=tuple((str(name), str(version)) for name, version in data["versions"]),
            shrunk=bool(data["shrunk"]),
            also=frozenset((str(trait), str(value)) for trait, value in data["also"]),
            agrees=str(data.get("agrees", "")),
        )
    except CaseError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise CaseError(f"finding: not one of ours ({type(error).__name__}: {str(error)[:60]})") from None


def _failure(data: dict[str, Any], case: Case) -> dict[str, Any]:
    if type(data["call"]) is not int or not -1 <= data["call"] < len(case.program):
        raise CaseError("finding: a failure's call is an index into the program")
    for name in ("oracle", "kind", "message"):
        if not isinstance(data[name], str):
            raise CaseError(f"finding: a failure's {name} is a string")
    if data.get("verdict", 1) not in tuple(Verdict) or not isinstance(data.get("promise", ""), str):
        raise CaseError("finding: a failure's verdict is 1 to 4, its promise a string")
    return dict(data)


def read_text(path: Path) -> str:
    """Read a file that may be hostile: a regular file, of bounded size, in UTF-8.

    Raises:
        CaseError: it is not; one line.
    """
    try:
        if not path.is_file():
            raise CaseError(f"{path}: no such file" if not path.exists() else f"{path}: not a file")
        if path.stat().st_size > MAX_TEXT:
            raise CaseError(f"{path}: {path.stat().st_size} bytes, more than {MAX_TEXT}")
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise CaseError(f"{path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise CaseError(f"{path}: not UTF-8") from None


def load_case(path: Path, memory: int = DEFAULT_MEMORY) -> Case:
    """Read a case from a case file or from a finding's folder.

    Raises:
        CaseError: it cannot be read or is none; one line.
    """
    if path.is_dir():
        path = path / "case.json"
    text = read_text(path)
    try:
        return loads(text, memory)
    except CaseError as error:
        raise CaseError(f"{path}: {error}") from None


def load_finding(path: Path, memory: int = DEFAULT_MEMORY) -> Finding:
    """Read a finding from its folder or its `finding.json`.

    Raises:
        CaseError: it cannot be read or is none; one line.
    """
    if path.is_dir():
        path = path / "finding.json"
    text = read_text(path)
    try:
        data = json.loads(text)
        if not isinstance(data, dict):
            raise CaseError("finding: not an object")
        return from_json(data, memory)
    except CaseError as error:
        raise CaseError(f"{path}: {error}") from None
    except (ValueError, RecursionError) as error:
        raise CaseError(f"{path}: not JSON ({str(error)[:80]})") from None


def case_text(case: Case) -> str:
    """A case file's text."""
    return dumps(case, indent=1) + "\n"
