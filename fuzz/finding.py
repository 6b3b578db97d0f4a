"""A distinct bug: its minimal case, what the oracles said of it, and how far it reaches."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from corpus.case import DEFAULT_MEMORY, Case, CaseError
from corpus.codec import MAX_TEXT, digest, dumps, from_dict, loads, to_dict
from corpus.traits import traits
from fuzz.variations import Reach

FORMAT = 1


@dataclass(frozen=True, slots=True)
class Finding:
    """One bug.

    `failures` are `Failure.to_json()` dictionaries, the first one is what was shrunk. `again` of `runs` re-runs of the
    minimal case failed in the same way. `shrunk` is False where a person stopped before the end.
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
        """Whether a failure of another case is this bug again."""
        same = self.case.backend == case.backend and case.program[max(index, 0)].op == self.op
        return same and kind in self.kinds and self.reach.covers(case, index)

    def widened(self, case: Case, index: int, kinds: frozenset[str]) -> Finding:
        """Return the finding, reaching the given case too (the same bug, by its key, where its reach said no)."""
        passed = self.reach.passed
        if not self.reach.covers(case, index):
            has = traits(case, index)
            passed = {
                trait: tuple(value for value in values if value != has.get(trait))
                for trait, values in passed.items()
                if trait != "elements"
            }
        return replace(self, kinds=self.kinds | kinds, reach=replace(self.reach, passed=passed))


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
        )
    except CaseError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CaseError(f"finding: not one of ours ({type(error).__name__}: {str(error)[:60]})") from None


def _failure(data: dict[str, Any], case: Case) -> dict[str, Any]:
    if type(data["call"]) is not int or data["call"] >= len(case.program):
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
