"""A distinct bug: its minimal case, what the oracles said of it, and how far it reaches."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from corpus.case import DEFAULT_MEMORY, Case, CaseError
from corpus.codec import MAX_TEXT, digest, dumps, from_dict, loads, to_dict
from corpus.traits import IDENTITY, PLAIN, elements, traits
from fuzz.variations import Reach

FORMAT = 1


@dataclass(frozen=True, slots=True)
class Finding:
    """One bug.

    `failures` are `Failure.to_json()` dictionaries, the first one is what was shrunk. `again` of `runs` re-runs of the
    minimal case failed in the same way. `shrunk` is False where a person stopped before the end. `also` holds traits
    (name, value) under which other cases turned out to be this bug.
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

    @property
    def primary(self) -> dict[str, Any]:
        """The failure that was shrunk."""
        return self.failures[0]

    @property
    def call(self) -> int:
        """Index of the call that failed."""
        return max(int(self.primary["call"]), 0)

    @property
    def op(self) -> str:
        """The collective that failed."""
        return self.case.program[self.call].op

    @property
    def title(self) -> str:
        """One line: what, where."""
        return f"{self.case.backend} {self.op}: {self.primary['kind']}"

    def explains(self, case: Case, index: int, kind: str) -> bool:
        """Whether a failure of another case is this bug again.

        The same collective, symptom, layouts and form; and no trait of the case has a value that was seen to pass.
        """
        if self.case.backend != case.backend or case.program[max(index, 0)].op != self.op or kind not in self.kinds:
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
