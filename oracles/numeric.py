"""Every output holds a legal result: of a copy the source's bits, of a reduction one of the legal set.

`observe` runs in the rank, in three steps that each look at what the one before left over: the prediction in one pass
over the output; the other ways to order the operations, block by block; and full membership on distinct observed
values. `judge` runs in the driver.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from corpus.case import Call, Case
from corpus.contract import Contract
from corpus.dtypes import DType
from corpus.meaning import uses
from corpus.payload import Bits
from corpus.traits import specs
from oracles import diagnosis
from oracles.compare import Positions, differing
from oracles.contents import Contents
from oracles.expectation import Part, gathered
from oracles.failure import NumericFailure
from oracles.legal import How, enumerable, forms, legal_words, power
from oracles.legal import judge as judge_elements
from oracles.observation import Observation
from oracles.rounding import Values, canonical, gradual_underflow
from oracles.text import counted, element, listed, ranks_text
from oracles.wrong import Wrong

if TYPE_CHECKING:
    from oracles.buffers import Buffer

SHOWN: Final = 3
"""Wrong elements that are shown."""

ROUNDS: Final = 4
"""Distinct observed values a table entry that are judged before a wrong output is given up on: the rest is not
counted. An output with nothing wrong is judged to the end."""

MANY_FORMS: Final = 128
"""Orders of operations that are compared block by block; every one of five ranks."""


def observe(contents: Contents, rank: int, buffers: Mapping[str, Buffer]) -> dict[str, Any]:
    """Look at every output that is written on `rank` (global): as it is, or as it was when it was overwritten.

    Returns {"outputs": [...]}, one entry a call and output: "call" (index), "output" (name), "elements", "wrong" (how
    many), "unjudged" (how many were not judged because enough others were wrong), "first" (the first wrong ones: index,
    observed, legal), "judged" (how many elements by which `How`), "power" (detection power where a bound judged, else
    None), "deviations" (a hash of where and how the output differs from the prediction, "" where it does not; NaN
    payloads left aside), "explanation", and "form" (what is wrong with a returned tensor's shape or dtype, or "").
    """
    outputs = []
    with gradual_underflow(), np.errstate(all="ignore"):
        for index, call in enumerate(contents.case.program):
            for name in dict.fromkeys(uses(contents.case, call, rank).outputs):
                found = contents.parts(index, rank, name)
                if found:
                    report = _observe(contents, index, rank, buffers[name], found)
                    outputs.append({"call": index, "output": name, **report})
    return {"outputs": outputs}


def _observe(contents: Contents, index: int, rank: int, buffer: Buffer, found: list[Part]) -> dict[str, Any]:
    report: dict[str, Any] = {
        "elements": buffer.spec.numel,
        "wrong": 0,
        "unjudged": 0,
        "first": [],
        "judged": {},
        "power": None,
        "deviations": "",
        "explanation": "",
        "form": _form(buffer),
    }
    if report["form"]:
        return report
    seen = buffer.bits(contents.overwritten(buffer.name, rank, index))
    judged: Counter[How] = Counter()
    powers: list[Values] = []
    wrong: list[Positions] = []
    digest = hashlib.sha256()
    deviates = False
    for part in found:
        start, length = part.piece.start, part.piece.length
        result = _Look(part, seen[start : start + length], buffer.dtype)
        judged.update(result.counts)
        powers += result.powers
        wrong.append(start + result.wrong)
        report["unjudged"] += result.unjudged
        if result.deviates:
            deviates = True
            digest.update(f"{start},{length}:".encode() + result.digest.digest())
    report["judged"] = {how.name.lower(): count for how, count in judged.items() if count}
    report["power"] = _mean(powers)
    report["deviations"] = digest.hexdigest()[:16] if deviates else ""
    places = np.sort(np.concatenate(wrong))
    report["wrong"] = len(places)
    if len(places):
        report["first"] = [_wrong_element(found, seen, int(place), buffer.dtype) for place in places[:SHOWN]]
        report["explanation"] = diagnosis.explain(
            Wrong(contents, index, buffer, found, seen, places, complete=not report["unjudged"])
        )
    return report


def _mean(powers: list[Values]) -> float | None:
    """The mean detection power of the elements that have one."""
    known = [array[np.isfinite(array)] for array in powers]
    return round(float(np.concatenate(known).mean()), 4) if sum(map(len, known)) else None


def _form(buffer: Buffer) -> str:
    """What is wrong with a returned tensor's shape or dtype, in words; "" where nothing is, or it is not returned."""
    if buffer.spec.payload is not None:
        return ""
    if buffer.returned is None:
        return "shape: nothing was returned"
    shape, dtype = tuple(buffer.returned.shape), str(buffer.returned.dtype).removeprefix("torch.")
    if dtype != buffer.spec.dtype:
        return f"dtype: {dtype} was returned, not {buffer.spec.dtype}"
    return "" if shape == buffer.spec.shape else f"shape: {shape} was returned, not {buffer.spec.shape}"


class _Look:
    """One piece of an output, judged: counts by `How`, offsets of wrong elements, and a hash of the deviations."""

    def __init__(self, part: Part, seen: Bits, dtype: DType) -> None:
        self.part = part
        self.seen = seen
        self.counts: Counter[How] = Counter({How.PREDICTED: len(seen)})
        self.powers: list[Values] = []
        self.wrong = np.empty(0, dtype=np.int64)
        self.unjudged = 0
        self.digest = hashlib.sha256()
        self.deviates = False
        offsets, places = self._unlike_prediction(dtype)
        if len(offsets):
            self._judge(offsets, places)

    def _unlike_prediction(self, dtype: DType) -> tuple[Positions, Positions]:
        """Offsets that no order of operations explains, and their places in the tables.

        Those that another order explains are counted as members.
        """
        part, seen = self.part, self.seen
        fmt = dtype.format if part.reduction is not None and part.reduction.defined else None
        orders = _Orders(part)
        offsets, places = [np.empty(0, dtype=np.int64)], [np.empty(0, dtype=np.int64)]
        for (offset, index, count), _ in differing(seen, part.predicted, part.blocks()):
            block, predicted = seen[offset : offset + count], part.predicted[index : index + count]
            # Of NaN we compare that it is one: payload and sign are whatever the order of operations made them. In the
            # prediction it is canonical already.
            same = canonical(block, fmt)
            differs = same != predicted
            differs = differs if differs.ndim == 1 else differs.any(axis=1)
            if not differs.any():
                continue
            self.deviates = True
            self.digest.update(f"{offset},{count};".encode())
            self.digest.update(np.ascontiguousarray(same).data)
            remaining = orders.unexplained(same, index, differs) if len(part.predicted) <= len(seen) // 4 else differs
            self._move(How.PREDICTED, How.MEMBER, int(differs.sum() - remaining.sum()))
            here = np.flatnonzero(remaining)
            offsets.append(offset + here)
            places.append(index + here)
        return np.concatenate(offsets), np.concatenate(places)

    def _move(self, old: How, new: How, count: int) -> None:
        self.counts[old] -= count
        self.counts[new] += count

    def _judge(self, offsets: Positions, places: Positions) -> None:
        """Membership of each distinct (table entry, observed value), in rounds of one value an entry."""
        part = self.part
        if part.reduction is None:
            self._move(How.PREDICTED, How.WRONG, len(offsets))
            self.wrong = offsets
            return
        wrong: list[Positions] = []
        latest = np.empty(len(part.predicted), dtype=np.int64)
        rounds = 0
        while len(offsets):
            values = self.seen[offsets]
            latest.fill(-1)
            latest[places] = np.arange(len(offsets))
            representative = latest[places]
            chosen = latest[latest >= 0]
            how = np.empty(len(offsets), dtype=np.uint8)
            sources = gathered(part.tables, places[chosen])
            how[chosen] = judge_elements(part.reduction, sources, values[chosen])
            by_bound = how[chosen] == How.BOUND
            if by_bound.any():
                self.powers.append(power(part.reduction, [source[by_bound] for source in sources]))
            same = values == values[representative]
            done = same if same.ndim == 1 else same.all(axis=1)
            verdicts = how[representative[done]]
            for each in How:
                self._move(How.PREDICTED, each, int((verdicts == each).sum()))
            wrong.append(offsets[done][verdicts == How.WRONG])
            offsets, places = offsets[~done], places[~done]
            rounds += 1
            if rounds >= ROUNDS and any(len(some) for some in wrong):
                break
        self.unjudged = len(offsets)
        self.counts[How.PREDICTED] -= len(offsets)
        self.wrong = np.sort(np.concatenate(wrong))


class _Orders:
    """The results of the orders of operations over one period, made when asked for, the last useful one first."""

    def __init__(self, part: Part) -> None:
        reduction = part.reduction
        known = reduction is not None and enumerable(reduction, len(part.tables))
        self._coming = forms(reduction, part.tables) if reduction is not None and known else iter(())
        self._made: list[Bits] = []

    def unexplained(self, block: Bits, index: int, differs: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
        """Which of a block's differing elements none of the orders explains."""
        left = differs.copy()
        for place, form in enumerate(self._all()):
            unlike = block != form[index : index + len(block)]
            left &= unlike if unlike.ndim == 1 else unlike.any(axis=1)
            if not left.any():
                self._made.insert(0, self._made.pop(place))
                break
        return left

    def _all(self) -> Iterator[Bits]:
        yield from list(self._made)
        while len(self._made) < MANY_FORMS:
            form = next(self._coming, None)
            if form is None:
                return
            self._made.append(form)
            yield form


def _wrong_element(found: list[Part], seen: Bits, place: int, dtype: DType) -> dict[str, Any]:
    part = next(part for part in found if 0 <= place - part.piece.start < part.piece.length)
    sources = gathered(part.tables, part.places(np.array([place - part.piece.start])))
    if part.reduction is None:
        legal, note = [sources[0]], ""
    else:
        legal, note = legal_words(part.reduction, sources)
        if note.endswith("by a bound"):
            note += _power_text(power(part.reduction, sources))
    texts = sorted({element(words, dtype) for words in legal})
    return {
        "index": place,
        "observed": element(seen[place], dtype),
        "legal": listed(texts, 6) + (f", {note}" if texts and note else note),
        "inputs": [element(source, dtype) for source in sources],
    }


def _power_text(powers: Values) -> str:
    """How much of what is wrong a bound would show; "" where that is not known."""
    known = powers[np.isfinite(powers)]
    return f" of detection power {float(known.mean()):.2f}" if len(known) else ""


def judge(case: Case, contract: Contract, observations: Sequence[Observation]) -> Iterator[NumericFailure]:
    """One failure a call and kind: "wrong result", "wrong shape", "wrong dtype"; what the ranks saw is merged."""
    for index, call in enumerate(case.program):
        entries = [
            (observation.rank, entry)
            for observation in observations
            for entry in observation.reports.get("numeric", {}).get("outputs", ())
            if entry["call"] == index
        ]
        for kind in ("dtype", "shape"):
            odd = [(rank, entry) for rank, entry in entries if entry["form"].startswith(kind)]
            if odd:
                yield _odd_form(call, index, kind, odd)
        wrong = [(rank, entry) for rank, entry in entries if entry["wrong"]]
        if wrong:
            yield _wrong_result(case, contract, call, index, wrong)


_Entries = list[tuple[int, dict[str, Any]]]


def _odd_form(call: Call, index: int, kind: str, odd: _Entries) -> NumericFailure:
    ranks = tuple(sorted({rank for rank, _ in odd}))
    text = odd[0][1]["form"].removeprefix(f"{kind}: ")
    return NumericFailure(
        f"wrong {kind}",
        f"{call.op} on {ranks_text(ranks)}: {text}",
        call=index,
        op=call.op,
        ranks=ranks,
        tensor=odd[0][1]["output"],
        observed=text,
    )


def _wrong_result(case: Case, contract: Contract, call: Call, index: int, wrong: _Entries) -> NumericFailure:
    ranks = tuple(sorted({rank for rank, _ in wrong}))
    rank, entry = min(wrong, key=lambda item: item[0])
    first = entry["first"][0]
    spec = case.tensor(entry["output"]).on(rank)
    explanations = dict.fromkeys(item["explanation"] for _, item in wrong if item["explanation"])
    about = "; ".join(explanations) if len(explanations) <= 2 else ""
    at_least = "at least " if entry["unjudged"] else ""
    what = f"{call.op} {call.reduce_op}" if call.reduce_op else call.op
    message = (
        f"{what} of {spec.dtype} {spec.shape}: {ranks_text(ranks)} wrong; on rank {rank} {at_least}"
        f"{entry['wrong']:,} of {counted(entry['elements'], 'element')}, the first at {first['index']}: "
        f"{first['observed']}, legal is {first['legal']}" + (f". {about[0].upper()}{about[1:]}" if about else "")
    )
    source = contract.ops[call.op].source if call.op in contract.ops else ""
    inputs, outputs = specs(case, call)
    if any(not one.is_contiguous or one.layout.conj or one.layout.neg for one in inputs + outputs):
        source = contract.views.source
    return NumericFailure(
        "wrong result",
        message,
        call=index,
        op=call.op,
        ranks=ranks,
        tensor=entry["output"],
        promise=f"{what}: {source}" if source else "",
        observed="; ".join(f"[{item['index']}] {item['observed']}" for item in entry["first"]),
        legal="; ".join(f"[{item['index']}] {item['legal']}" for item in entry["first"]),
        details={"ranks": {str(rank): item for rank, item in wrong}, "explanation": about},
    )
