"""An illegal program is refused: every rank that can know of the mistake raises in time, with its tensors unchanged and
the group usable afterwards.

Few libraries promise that. What else happens is verdict class 3, and a bug only where the contract cites a promise.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from corpus.case import Call, Case, Tensor, TensorSpec
from corpus.contract import Contract
from corpus.meaning import uses
from oracles import numeric
from oracles.contents import Contents
from oracles.errors import first_line
from oracles.failure import IllegalFailure, Verdict
from oracles.liveness import innermost
from oracles.observation import Observation, Status
from oracles.text import counted, element, listed, ranks_text

if TYPE_CHECKING:
    from oracles.buffers import Buffer

SHOWN: Final = 4
"""Elements of an output that are shown where an illegal program is accepted."""

PROBES: Final = ("all_reduce", "broadcast", "all_gather_into_tensor")
"""Collectives that show whether a group is usable, the first that the contract has."""


def observe(
    case: Case, contract: Contract, rank: int, buffers: Mapping[str, Buffer], *, raised: int | None, timed_out: bool
) -> dict[str, Any]:
    """Look at every tensor on `rank` (global) after the program, or after its call `raised` raised.

    Returns, by oracle name, {"illegal": {"timed_out", "changes", "held"}}: a change is "tensor", "what" ("neighbours"
    for memory that is not the view's, "input", or "output" for what a call that raised might have written), and "text";
    `held` is what the outputs hold, by name, where nothing raised. With it comes the numeric oracle's report, of a
    program that is wrong by its dtype alone.
    """
    calls = case.calls(rank)
    end = len(calls) if raised is None else raised
    written = {name for call in calls[:end] for name in uses(case, call, rank).outputs}
    at_work = {name for call in calls[end : end + 1] for name in uses(case, call, rank).outputs}
    changes: list[dict[str, str]] = []
    held: dict[str, str] = {}
    for name, buffer in buffers.items():
        if buffer.spec.payload is not None:
            changes += _changes(buffer, free=name in written, output=name in at_work)
        if raised is None and name in written and buffer.tensor is not None:
            bits = buffer.bits()[:SHOWN]
            held[name] = listed([element(words, buffer.dtype) for words in bits], SHOWN)
    reports: dict[str, Any] = {"illegal": {"timed_out": timed_out, "changes": changes, "held": held}}
    if raised is None and case.illegal == "unsupported dtype":
        reports["numeric"] = numeric.observe(Contents(case, contract), rank, buffers)
    return reports


def _changes(buffer: Buffer, *, free: bool, output: bool) -> Iterator[dict[str, str]]:
    """What is not as it was: outside of the view, and inside of it, unless it was free to change."""
    from oracles.buffers import strided

    words, spec = buffer.words(), buffer.spec
    initial = np.empty_like(words)
    buffer.write_initial(initial)
    differs = words != initial
    if differs.ndim > 1:
        differs = differs.any(axis=1)
    mine = np.zeros(len(words), dtype=bool)
    if spec.numel:
        strided(mine, spec)[...] = True
    for what, places in (
        ("neighbours", np.flatnonzero(differs & ~mine)),
        ("output" if output else "input", np.flatnonzero(differs & mine)),
    ):
        if not len(places) or (free and what != "neighbours"):
            continue
        first = int(places[0])
        where = f"{buffer.name}'s neighbours in memory" if what == "neighbours" else buffer.name
        text = f"{counted(len(places), 'element')} of {where} changed, the first {first - spec.layout.before:+d} from "
        text += f"its first: {element(initial[first], buffer.dtype)} became {element(words[first], buffer.dtype)}"
        yield {"tensor": buffer.name, "what": what, "text": text}


def probe(case: Case, contract: Contract, observations: Sequence[Observation]) -> Case | None:
    """A small legal program on the groups that an illegal one has used, to see whether they still work.

    None where that says nothing: a rank is gone or hangs; some raised and others did not; or one waited until the
    library gave up, after which connections are closed (gloo says so: "typically caused by a remote worker crashing").
    """
    statuses = {seen.status for seen in observations}
    excused = set(range(case.world.size)) - set(_concerned(case))
    if not statuses <= {Status.OK, Status.RAISED} or any(_report(seen).get("timed_out") for seen in observations):
        return None
    if len({seen.status for seen in observations if seen.rank not in excused}) > 1:
        return None
    op = next((op for op in PROBES if op in contract.ops), None)
    if op is None:
        return None
    promise = contract.ops[op]
    reduce_op = next(iter(promise.reduce_ops)) if op == "all_reduce" else None
    dtype = (promise.dtypes if reduce_op is None else promise.reduce_ops[reduce_op])[0]
    memory = next(iter(case.tensors)).spec.memory if case.tensors else "cpu"
    groups = dict.fromkeys(call.group for rank in range(case.world.size) for call in case.calls(rank))
    calls: list[Call] = []
    tensors: list[Tensor] = []
    for place, group in enumerate(groups):
        x = Tensor(f"p{place}", TensorSpec((3,), dtype, memory=memory))
        y = x
        if not promise.in_place:
            rows = 3 * len(case.world.ranks(group)) if op == "all_gather_into_tensor" else 3
            payload = None if promise.returned else "poison"
            y = Tensor(f"q{place}", TensorSpec((rows,), dtype, memory=memory, payload=payload))
        tensors += dict.fromkeys((x, y))
        root = 0 if op == "broadcast" else None
        calls.append(Call(op, (x.name,), (y.name,), group=group, reduce_op=reduce_op, root=root))
    return Case(
        case.backend, case.world, tuple(tensors), tuple(calls), flags=case.flags, fault=case.fault, seed=case.seed
    )


def judge(case: Case, contract: Contract, observations: Sequence[Observation]) -> Iterator[IllegalFailure]:
    """What was not a clean refusal: at most one of "crash", "stopped", "silently accepted", "hang", "raised on some
    ranks"; then "tensors changed although it raised" and "group unusable afterwards".
    """
    told = _Told(case, contract)
    by_status = {status: [seen for seen in observations if seen.status is status] for status in Status}
    raised, stuck = by_status[Status.RAISED], by_status[Status.HUNG]
    concerned = [seen for seen in observations if seen.rank in _concerned(case)]
    finished = [seen for seen in concerned if seen.status is Status.OK]
    if died := sorted(by_status[Status.DIED], key=lambda seen: (seen.order, seen.rank)):
        first = died[0]
        parts = [f"rank {first.rank} died by {first.signal or 'an unknown cause'}"]
        parts += [f"its last output: {first.output.strip()[-400:]}"] if first.output.strip() else []
        parts += [f"{ranks_text([seen.rank for seen in died[1:]])} died after it"] if died[1:] else []
        yield told.failure("crash", "; ".join(parts), died, broken=True)
    elif by_status[Status.STOPPED]:
        ranks = [seen.rank for seen in by_status[Status.STOPPED]]
        yield told.failure("stopped", f"{ranks_text(ranks)} was stopped (process state T)", by_status[Status.STOPPED])
    elif raised and (finished or stuck):
        parts = [f"raised on {ranks_text([seen.rank for seen in raised])} ({first_line(raised[0])}), but"]
        parts += [f"{ranks_text([seen.rank for seen in finished])} finished"] if finished else []
        parts += [_stuck(stuck)] if stuck else []
        text = " ".join([parts[0], " and ".join(parts[1:])]) + _accepted(case, finished)
        yield told.failure("raised on some ranks", text, finished + stuck, broken=True)
    elif stuck:
        yield told.failure("hang", _stuck(stuck), stuck, broken=True)
    elif not raised:
        yield told.failure("silently accepted", "no rank raised" + _accepted(case, finished), finished, broken=True)
    else:
        yield from _refused_badly(told, raised)
    yield from _unusable(told, observations)


def _refused_badly(told: _Told, raised: list[Observation]) -> Iterator[IllegalFailure]:
    """Every rank raised: what the library changed before that."""
    changes = [
        (seen, change)
        for seen in raised
        for change in _report(seen).get("changes", ())
        # A collective that others never joined may have written what it got from those that did.
        if change["what"] != "output" or not _report(seen)["timed_out"]
    ]
    if changes:
        seen, change = changes[0]
        ranks = list(dict.fromkeys(one.rank for one, _ in changes))
        text = f"raised ({first_line(seen)}), but tensors changed on {ranks_text(ranks)}; on rank {seen.rank}, "
        text += change["text"]
        yield told.failure(
            "tensors changed although it raised", text, [one for one, _ in changes], tensor=change["tensor"]
        )


def _unusable(told: _Told, observations: Sequence[Observation]) -> Iterator[IllegalFailure]:
    """What a legal program met in the same groups afterwards."""
    probes = [Observation.from_json(seen.reports["probe"]) for seen in observations if "probe" in seen.reports]
    case = probe(told.case, told.contract, observations) if probes else None
    if case is None or any(seen.status is Status.LOST for seen in probes):
        return
    unlike = [seen for seen in probes if seen.status is not Status.OK]
    op = case.program[0].op
    if unlike:
        what = "; ".join(
            f"rank {seen.rank} {'raised ' + first_line(seen) if seen.status is Status.RAISED else str(seen.status)}"
            for seen in unlike
        )
        text = f"{op} in the same group afterwards: {what}"
    else:
        wrong = list(numeric.judge(case, told.contract, probes))
        if not wrong:
            return
        unlike = [seen for seen in probes if seen.rank in wrong[0].ranks]
        text = f"in the same group afterwards, {wrong[0]}"
    yield told.failure("group unusable afterwards", text, unlike)


class _Told:
    """How the failures of one illegal program are worded."""

    def __init__(self, case: Case, contract: Contract) -> None:
        self.case = case
        self.contract = contract

    def failure(
        self, kind: str, text: str, seen: Sequence[Observation], *, tensor: str | None = None, broken: bool = False
    ) -> IllegalFailure:
        """`broken`: if the contract promises a refusal, it was broken."""
        case = self.case
        index = min(max(min((one.call for one in seen), default=0), 0), len(case.program) - 1)
        op = case.program[index].op
        promise = self._promise() if broken else ""
        return IllegalFailure(
            kind,
            f"{op} with {_MISTAKES[str(case.illegal)]}: {text}",
            call=index,
            op=op,
            ranks=tuple(sorted({one.rank for one in seen})),
            tensor=tensor,
            verdict=Verdict.ILLEGAL,
            promise=promise,
            observed=text,
            legal="every rank that can know of it raises, changes nothing, and the group can be used afterwards",
            details={
                "mistake": str(case.illegal),
                "errors": {str(one.rank): one.error for one in seen if one.error},
                "stacks": [f"rank {one.rank}:\n{one.stack}" for one in seen if one.stack],
            },
        )

    def _promise(self) -> str:
        case = self.case
        promised = self.contract.illegal.get(str(case.illegal))
        ops = {call.op for rank in range(case.world.size) for call in case.calls(rank)}
        return promised.source if promised is not None and ops <= set(promised.value) else ""


_MISTAKES: Final = {
    "dtype": "ranks that disagree about the dtype",
    "shape": "ranks that disagree about the shape",
    "reduce op": "ranks that disagree about the reduce op",
    "root": "ranks that disagree about the root",
    "group": "ranks in different groups",
    "order": "ranks that call in another order",
    "count": "ranks that call another number of times",
    "splits": "splits that do not sum up",
    "output size": "outputs that are too small",
    "aliased outputs": "the same tensor twice among the outputs",
    "unsupported dtype": "a dtype that the contract does not list",
    "device": "a tensor on the wrong device",
}


def _concerned(case: Case) -> tuple[int, ...]:
    """Ranks that can know of the mistake: those that take part, and where the number of calls differs, those that make
    more of them than another rank of the group."""
    counts = {rank: sum(_takes_part(case, call, rank) for call in case.calls(rank)) for rank in range(case.world.size)}
    members = [rank for rank in counts if any(rank in case.ranks(call) for call in case.program)]
    if case.illegal == "count":
        # Of a send only two ranks are members.
        taking = [rank for rank in members if any(_takes_part(case, call, rank) for call in case.program)]
        fewest = min((counts[rank] for rank in taking), default=0)
        return tuple(rank for rank, count in counts.items() if count > fewest)
    return tuple(rank for rank, count in counts.items() if count)


def _takes_part(case: Case, call: Call, rank: int) -> bool:
    use = uses(case, call, rank)
    return bool(use.inputs or use.outputs) or (call.op == "barrier" and rank in case.ranks(call))


def _report(seen: Observation) -> Mapping[str, Any]:
    report: Mapping[str, Any] = seen.reports.get("illegal", {})
    return report


def _stuck(stuck: Sequence[Observation]) -> str:
    return "; ".join(
        f"rank {seen.rank} did not return from call {seen.call}" + (f", {innermost(seen.stack)}" if seen.stack else "")
        for seen in stuck
    )


def accepted(finished: Sequence[Observation]) -> str:
    """Whether the result is right where a dtype that the contract does not list was accepted; "" where nothing says."""
    outputs = [entry for seen in finished for entry in seen.reports.get("numeric", {}).get("outputs", ())]
    if any(entry["wrong"] or entry["form"] for entry in outputs):
        return "the result is wrong"
    unspecified = any(entry["judged"].get("unspecified", 0) for entry in outputs)
    return "the result is right" if outputs and not unspecified else ""


def _accepted(case: Case, finished: Sequence[Observation]) -> str:
    """What ranks hold that accepted an illegal program, and what they changed that was not theirs."""
    parts = []
    if case.illegal == "unsupported dtype":
        parts += [f"and {text}"] if (text := accepted(finished)) else []
    held = {seen.rank: _report(seen).get("held", {}) for seen in finished}
    parts += [
        f"rank {rank}'s {name} is {text}" for rank, outputs in held.items() for name, text in outputs.items() if text
    ]
    parts += [
        f"on rank {seen.rank}, {change['text']}" for seen in finished for change in _report(seen).get("changes", ())
    ]
    return "".join(f"; {part}" for part in parts[:8])
