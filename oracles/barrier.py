"""No rank leaves a barrier before the last one has entered it.

Each rank notes when it entered and left, on a clock that all processes of one machine share (CLOCK_MONOTONIC). Ranks on
different machines are not compared. A rank that is late on purpose makes a barrier that does nothing show every time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from corpus.case import Case
from corpus.contract import Contract
from oracles.failure import BarrierFailure
from oracles.observation import Observation
from oracles.text import ranks_text


def observe(times: Mapping[int, tuple[float, float]]) -> dict[str, Any]:
    """Report when this rank entered and left each barrier, by the call's index, in seconds.

    Returns {"machine": ..., "calls": [[index, entered, left], ...]}; nothing where there was no barrier.
    """
    if not times:
        return {}
    return {"machine": _machine(), "calls": [[index, *pair] for index, pair in sorted(times.items())]}


@cache
def _machine() -> str:
    """What two processes have in common if they share a clock: the boot of one kernel."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def judge(case: Case, contract: Contract, observations: Sequence[Observation]) -> Iterator[BarrierFailure]:
    """One failure "barrier left early" a call."""
    reports = [(seen.rank, seen.reports.get("barrier", {})) for seen in observations]
    for index, call in enumerate(case.program):
        if call.op != "barrier":
            continue
        passed = {
            rank: (report["machine"], entered, left)
            for rank, report in reports
            for called, entered, left in report.get("calls", ())
            if called == index
        }
        for machine in sorted({machine for machine, _, _ in passed.values()}):
            here = {rank: (entered, left) for rank, (at, entered, left) in passed.items() if at == machine}
            last = max(here, key=lambda rank: here[rank][0])
            entered = here[last][0]
            early = sorted(rank for rank, (_, left) in here.items() if left < entered)
            if early:
                ahead = entered - min(here[rank][1] for rank in early)
                text = f"{ranks_text(early)} left the barrier {ahead * 1000:.1f} ms before rank {last} entered it"
                yield BarrierFailure(
                    "barrier left early",
                    f"barrier: {text}",
                    call=index,
                    op=call.op,
                    ranks=tuple(early),
                    promise=contract.op(call.op).source,
                    observed=text,
                    legal="no rank leaves before all have entered",
                )
