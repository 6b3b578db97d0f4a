"""A legal program is refused only where the contract allows it, and then on every rank that takes part."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from corpus.case import Case
from corpus.contract import Contract
from corpus.meaning import region, uses
from oracles.failure import RefusalFailure
from oracles.observation import Observation, Status
from oracles.text import ranks_text


def refused(case: Case, contract: Contract, observations: Sequence[Observation]) -> bool:
    """Whether the contract lets the first call that raised be refused, and it was refused where there is a reason.

    A rank refuses what it holds itself, and cannot know what the others hold: where only some ranks raise, each of them
    must have a reason of its own, and that the others wait for them in vain is the consequence.
    """
    raised = [seen for seen in observations if seen.status is Status.RAISED]
    if not raised:
        return False
    index = min(seen.call for seen in raised)
    if _holdouts(case, index, observations):
        return all(_may_refuse(case, contract, index, seen.rank) for seen in raised if seen.call == index)
    return any(_may_refuse(case, contract, index, rank) for rank in range(case.world.size))


def judge(case: Case, contract: Contract, observations: Sequence[Observation]) -> Iterator[RefusalFailure]:
    """At most one failure: "raised on some ranks", or "refused" where all did and the contract says that it works."""
    raised = [seen for seen in observations if seen.status is Status.RAISED]
    if not raised or refused(case, contract, observations):
        return
    index = min(seen.call for seen in raised)
    first = next(seen for seen in raised if seen.call == index)
    call = case.program[index] if 0 <= index < len(case.program) else None
    what = call.op if call is not None else "the preparation of the case"
    error = first_line(first)
    unlike = _holdouts(case, index, observations)
    # A rank that was ended while it waited might have raised too: it tells nothing.
    holdouts = [seen for seen in unlike if seen.status is not Status.CUT_SHORT]
    waiting = [seen.rank for seen in unlike if seen.status is Status.CUT_SHORT]
    if holdouts:
        kind = "raised on some ranks"
        others = ", ".join(f"rank {seen.rank} {_did(seen)}" for seen in holdouts)
        message = f"{what} raised on {ranks_text([seen.rank for seen in raised])} ({error}), but {others}"
    else:
        kind = "refused"
        message = (
            f"{what} is refused on {ranks_text([seen.rank for seen in raised])}, which the contract says works: {error}"
        )
        message += f"; {ranks_text(waiting)} waited and had to be ended" if waiting else ""
    known = call is not None and call.op in contract.ops
    yield RefusalFailure(
        kind,
        message,
        call=index,
        op=call.op if call is not None else "",
        ranks=tuple(seen.rank for seen in raised),
        promise=contract.ops[call.op].source if known and call is not None else "",
        observed=error,
        legal="a result" if kind == "refused" else "a result on every rank, or an exception on every rank",
        details={"errors": {str(seen.rank): seen.error for seen in raised}},
    )


def first_line(seen: Observation) -> str:
    """The exception as a person quotes it: "RuntimeError: Invalid scalar type"."""
    lines = seen.error.strip().splitlines()
    return f"{seen.error_type}: {lines[0]}" if lines else seen.error_type


def _holdouts(case: Case, index: int, observations: Sequence[Observation]) -> list[Observation]:
    """Ranks that take part in the call and did not raise there."""
    taking_part = set(range(case.world.size))
    if 0 <= index < len(case.program):
        call = case.program[index]
        taking_part = {rank for rank in case.ranks(call) if call.op == "barrier" or any(_tensors(case, index, rank))}
    return [
        seen
        for seen in observations
        if seen.rank in taking_part and not (seen.status is Status.RAISED and seen.call == index)
    ]


def _tensors(case: Case, index: int, rank: int) -> tuple[str, ...]:
    """What a rank passes to a call, or to the calls of its region: they are refused together."""
    together = [uses(case, case.program[place], rank) for place in region(case.program, index)]
    return tuple(name for use in together for name in use.inputs + use.outputs)


def _did(seen: Observation) -> str:
    if seen.status is Status.RAISED:
        return f"raised in call {seen.call}"
    return {Status.OK: "finished", Status.HUNG: "hung"}.get(seen.status, str(seen.status))


def _may_refuse(case: Case, contract: Contract, index: int, rank: int) -> bool:
    """Whether the contract allows this rank to refuse this call: for its dtype, or for a view among its tensors."""
    if not 0 <= index < len(case.program):
        return False
    call = case.program[index]
    specs = [case.tensor(name).on(rank) for name in _tensors(case, index, rank)]
    promise = contract.ops.get(call.op)
    if promise is None or any(not promise.accepts(spec.dtype, call.reduce_op) for spec in specs):
        return True
    views = any(not spec.is_contiguous or spec.layout.conj or spec.layout.neg for spec in specs)
    return views and contract.views.value in ("right or refused", "refused")
