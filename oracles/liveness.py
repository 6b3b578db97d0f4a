"""No rank crashes, hangs or is stopped.

One failure a world, for what came first: that the others wait after a crash, or while a rank is stopped, is a
consequence. Neither kind nor key holds the signal: a race may end now by one and now by another.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final

from corpus.case import Case
from corpus.contract import Contract
from oracles.failure import LivenessFailure, Verdict
from oracles.observation import Observation, Status
from oracles.text import ranks_text

FRAMES: Final = 2
"""Innermost frames of a stack that are shown."""

TAIL: Final = 400
"""Characters of a dead rank's last output that are shown."""

_FRAME = re.compile(r'^\s*File "(?P<file>[^"]*)", line (?P<line>\d+),? in (?P<function>.*?)\s*$', re.MULTILINE)


def judge(case: Case, contract: Contract, observations: Sequence[Observation]) -> Iterator[LivenessFailure]:
    """At most one failure: "crash", else "stopped", else "hang"."""
    by_status = {status: [seen for seen in observations if seen.status is status] for status in Status}
    if by_status[Status.DIED]:
        yield _crash(case, by_status[Status.DIED], by_status[Status.CUT_SHORT])
    elif by_status[Status.STOPPED]:
        yield _waiting(case, "stopped", by_status[Status.STOPPED], observations)
    elif by_status[Status.HUNG]:
        yield _waiting(case, "hang", by_status[Status.HUNG], observations)


def _crash(case: Case, died: list[Observation], cut_short: list[Observation]) -> LivenessFailure:
    died = sorted(died, key=lambda seen: (seen.order, seen.rank))
    first = died[0]
    message = f"rank {first.rank} died by {first.signal or 'an unknown cause'} {_during(case, first.call)}"
    if first.stack:
        message += f", {innermost(first.stack)}"
    if first.output.strip():
        message += f"; its last output: {_tail(first.output)}"
    if len(died) > 1:
        message += f"; {ranks_text([seen.rank for seen in died[1:]])} died after it"
    if cut_short:
        message += f"; {ranks_text([seen.rank for seen in cut_short])} had to be ended"
    return _failure(case, "crash", message, first.call, [first], died)


def _waiting(case: Case, kind: str, stuck: list[Observation], observations: Sequence[Observation]) -> LivenessFailure:
    call = min(seen.call for seen in stuck)
    verb = "was stopped (process state T)" if kind == "stopped" else "did not return"
    parts = [
        f"rank {seen.rank} {verb} {_during(case, seen.call)}" + (f", {innermost(seen.stack)}" if seen.stack else "")
        for seen in stuck
    ]
    for status, what in (
        (Status.OK, "finished"),
        (Status.RAISED, "raised an exception"),
        (Status.HUNG, "waited"),
        (Status.CUT_SHORT, "had to be ended"),
    ):
        ranks = [seen.rank for seen in observations if seen.status is status and seen not in stuck]
        if ranks:
            parts.append(f"{ranks_text(ranks)} {what}")
    return _failure(case, kind, "; ".join(parts), call, stuck, stuck)


def _failure(
    case: Case, kind: str, message: str, call: int, ranks: list[Observation], stacks: list[Observation]
) -> LivenessFailure:
    return LivenessFailure(
        kind,
        message,
        call=call,
        op=case.program[call].op if 0 <= call < len(case.program) else "",
        ranks=tuple(seen.rank for seen in ranks),
        verdict=Verdict.DEAD,
        promise="a legal program ends",
        observed=message,
        legal="every rank returns from every call",
        details={
            "signal": ranks[0].signal,
            "stacks": [f"rank {seen.rank}:\n{seen.stack}" for seen in stacks if seen.stack],
        },
    )


def _during(case: Case, call: int) -> str:
    if not 0 <= call < len(case.program):
        return "before the first call"
    return f"in call {call} ({case.program[call].op})"


def _tail(output: str) -> str:
    text = output.strip()
    return text if len(text) <= TAIL else f"...{text[-TAIL:]}"


def innermost(stack: str) -> str:
    """The innermost frames of a Python stack: "at all_reduce (distributed_c10d.py:2501), called by run (c10d.py:80)".

    Reads the stacks of both `faulthandler` ("most recent call first") and `traceback` ("last"); of several threads, the
    one that `faulthandler` calls current, else the last one, which is the main thread.
    """
    threads = re.split(r"\n\s*\n", stack.strip())
    thread = next((text for text in threads if text.startswith("Current thread")), threads[-1])
    frames = [match.groupdict() for match in _FRAME.finditer(thread)]
    if not frames:
        return f"stack {_tail(stack)!r}"
    if "most recent call last" in thread:
        frames.reverse()
    texts = [f"{frame['function']} ({frame['file'].rpartition('/')[2]}:{frame['line']})" for frame in frames[:FRAMES]]
    return f"at {', called by '.join(texts)}"
