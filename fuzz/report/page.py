"""A finding in Markdown: what happened, the smallest program, observed beside legal, how far it reaches, versions."""

from __future__ import annotations

import platform

from corpus.codec import digest
from corpus.describe import describe
from fuzz.finding import Finding

_VERDICTS = {
    1: "wrong result or broken promise on a legal program",
    2: "crash or hang on a legal program",
    3: "an illegal program accepted, or refused badly",
    4: "divergence where nothing is promised",
}
_NOTED = "This is noted, and not called a bug: nothing is promised here."


def page(finding: Finding, trial: str) -> str:
    """Return `finding.md`. `trial` says what came of running the repro, "" where it was not run."""
    primary = finding.primary
    lines = [f"# {finding.title}", "", primary["message"], ""]
    lines += [f"Verdict {primary['verdict']}: {_VERDICTS[int(primary['verdict'])]}."]
    lines += [] if finding.bug else [_NOTED]
    if primary.get("promise"):
        lines += [f"Promise: {primary['promise']}."]
    lines += ["", "## Smallest program", "", "```", *describe(finding.case), "```", ""]
    if not finding.shrunk:
        lines += ["The run was interrupted before this was shrunk or run again.", ""]
    lines += ["## What happened", ""]
    for failure in finding.failures:
        ranks = [str(rank) for rank in failure.get("ranks", ())]
        where = f" on rank{'s' * (len(ranks) > 1)} {', '.join(ranks)}" if ranks else ""
        lines += [f"- **{failure['kind']}**{where}{'' if failure is primary else ': ' + failure['message']}"]
        if failure.get("observed") and failure.get("legal"):
            lines += ["", "  | observed | legal |", "  | --- | --- |"]
            lines += [f"  | {_cell(failure.get('observed', ''))} | {_cell(failure.get('legal', ''))} |", ""]
    stacks = [detail for failure in finding.failures for detail in failure.get("details", {}).get("stacks", [])]
    for stack in stacks:
        lines += ["", "```", str(stack).rstrip(), "```"]
    if finding.agrees:
        lines += ["", f"A third vote: {finding.agrees}."]
    if finding.runs:
        lines += ["", f"It {finding.rate}."]
    sentences = finding.reach.sentences()
    if sentences:
        lines += ["", "## Variations", "", "One trait changed at a time:", "", *(f"- {line}" for line in sentences)]
    versions = [f"{name} {version}" for name, version in finding.versions]
    versions += [f"Python {platform.python_version()}", platform.platform()]
    lines += [
        "",
        "## To run it again",
        "",
        "    python repro.py",
        f"    cclfuzz replay case.json   # {digest(finding.case)}",
    ]
    lines += ["", trial] if trial else []
    lines += ["", f"Versions: {', '.join(versions)}."]
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    return " ".join(str(text).replace("|", "\\|").split())
