"""Puts the oracles' verdicts on one case together."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from corpus.case import Case
from corpus.codec import digest
from corpus.contract import Contract
from corpus.meaning import Flow, uses
from oracles import agreement, barrier, errors, fold, illegal, liveness, numeric, preservation, relations, schema
from oracles.failure import Failure
from oracles.observation import Observation, Status


@dataclass(frozen=True, slots=True)
class Judgement:
    """What one case showed.

    `failures` in a fixed order. `refused`: every rank refused it, as the contract allows. `unspecified` counts elements
    and buffers of which the contract says nothing, `bound_only` elements that only a bound judged. `lost` is why there
    is no verdict, "" where there is one. `folds`: the orders of additions that were seen, in words. `power`: the mean
    detection power of the verdicts by bound, None where there are none.
    """

    failures: list[Failure] = field(default_factory=list)
    refused: bool = False
    unspecified: int = 0
    bound_only: int = 0
    lost: str = ""
    folds: tuple[str, ...] = ()
    power: float | None = None


def judge(case: Case, contract: Contract, observations: Sequence[Observation]) -> Judgement:
    """Judge what the ranks of one case reported (one observation a rank).

    A world that died or hung has no other failure than that; one that raised is judged for its errors, and for what it
    changed where it reported that.

    Raises:
        RuntimeError: a rank ran another case than this one, which is our own mistake.
    """
    observations = sorted(observations, key=lambda seen: seen.rank)
    _check_digests(case, observations)
    lost = [seen for seen in observations if seen.status is Status.LOST]
    if lost:
        return Judgement(lost="; ".join(f"rank {seen.rank}: {seen.error or 'lost'}" for seen in lost))
    if case.illegal is not None:
        badly = list(illegal.judge(case, contract, observations))
        return Judgement(failures=[*badly], refused=not badly)
    statuses = {seen.status for seen in observations}
    found: Iterable[Failure]
    refused = False
    if statuses & {Status.DIED, Status.STOPPED}:
        found = liveness.judge(case, contract, observations)
    elif Status.RAISED in statuses:
        # A rank that waits for one that raised hangs: that is the consequence, the error is the finding.
        refused = errors.refused(case, contract, observations)
        found = [*preservation.judge(case, contract, observations), *errors.judge(case, contract, observations)]
    elif statuses - {Status.OK}:
        found = liveness.judge(case, contract, observations)
    else:
        found = [
            *_causes(case, observations, numeric.judge(case, contract, observations)),
            *preservation.judge(case, contract, observations),
            *barrier.judge(case, contract, observations),
            *_causes(case, observations, agreement.judge(case, contract, observations)),
            *schema.judge(case, contract, observations),
            *_causes(case, observations, relations.judge(case, contract, observations)),
        ]
    outputs = [entry for seen in observations for entry in seen.reports.get("numeric", {}).get("outputs", ())]
    skipped = sum(seen.reports.get("preservation", {}).get("unspecified", 0) for seen in observations)
    return Judgement(
        failures=list(found),
        refused=refused,
        unspecified=skipped + sum(entry["judged"].get("unspecified", 0) for entry in outputs),
        bound_only=sum(entry["judged"].get("bound", 0) for entry in outputs),
        folds=tuple(fold.judge(case, observations)),
        power=_power(outputs),
    )


def _power(outputs: Iterable[Mapping[str, Any]]) -> float | None:
    """The mean detection power of the elements that a bound judged, as far as it is known."""
    known = [(entry["power"], entry["judged"].get("bound", 0)) for entry in outputs if entry["power"] is not None]
    total = sum(count for _, count in known)
    return sum(power * count for power, count in known) / total if total else None


def _causes(case: Case, observations: Sequence[Observation], failures: Iterable[Failure]) -> Iterator[Failure]:
    """The failures of calls that were given what they should have been given: the others are consequences."""
    spoilt = _spoilt(case, observations) if len(case.program) > 1 else frozenset()
    return (failure for failure in failures if failure.call not in spoilt)


def _spoilt(case: Case, observations: Sequence[Observation]) -> frozenset[int]:
    """Calls that read, on some rank, what an earlier call got wrong or had no business to change."""
    flow = Flow(case)
    wrong = {
        (entry["output"], seen.rank, entry["call"])
        for seen in observations
        for entry in seen.reports.get("numeric", {}).get("outputs", ())
        if entry["wrong"] or entry["form"]
    }
    changed = {
        (change["tensor"], seen.rank): change["call"]
        for seen in observations
        for change in seen.reports.get("preservation", {}).get("changes", ())
        if change["kind"] in ("input changed", "buffer changed")
    }
    spoilt: set[int] = set()
    for index, call in enumerate(case.program):
        for rank in case.ranks(call):
            use = uses(case, call, rank)
            for name in use.inputs:
                writer = flow.writer(name, rank, index)
                if (name, rank, writer) in wrong or changed.get((name, rank), index) < index:
                    spoilt.add(index)
        if index in spoilt:
            wrong |= {(name, rank, index) for rank in case.ranks(call) for name in uses(case, call, rank).outputs}
    return frozenset(spoilt)


def _check_digests(case: Case, observations: Sequence[Observation]) -> None:
    wanted = digest(case)
    for seen in observations:
        # A rank that ended before it could report has no digest.
        if seen.digest != wanted and (seen.digest or seen.status is Status.OK):
            raise RuntimeError(f"rank {seen.rank} ran case {seen.digest or 'without a digest'}, not {wanted}")
