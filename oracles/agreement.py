"""Ranks hold identical bits where the contract says so.

Two ranks can both hold a legal sum and still not the same one. What is compared is the hash of where and how each
output differs from the prediction that all ranks share, so no tensor travels. NaN counts as NaN whatever its payload.
A call whose result is wrong somewhere is not looked at: that its ranks disagree is a consequence.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from corpus.case import Case
from corpus.contract import Contract
from oracles.failure import AgreementFailure
from oracles.observation import Observation
from oracles.text import ranks_text


def judge(case: Case, contract: Contract, observations: Sequence[Observation]) -> Iterator[AgreementFailure]:
    """One failure "ranks disagree" a call whose contract promises bitwise identical outputs."""
    for index, call in enumerate(case.program):
        promise = contract.agreement.get(call.op)
        if promise is None or not promise.value:
            continue
        entries = [
            (observation.rank, entry)
            for observation in observations
            for entry in observation.reports.get("numeric", {}).get("outputs", ())
            if entry["call"] == index
        ]
        if any(entry["wrong"] or entry["form"] for _, entry in entries):
            continue
        for output in dict.fromkeys(call.outputs):
            camps: dict[str, list[int]] = {}
            for rank, entry in sorted(entries, key=lambda item: item[0]):
                if entry["output"] == output:
                    camps.setdefault(entry["deviations"], []).append(rank)
            if len(camps) > 1:
                texts = [ranks_text(camp) for camp in camps.values()]
                yield AgreementFailure(
                    "ranks disagree",
                    f"{call.op}: every rank holds a legal result of {output}, but not the same bits: "
                    + ", ".join(f"{text} hold{'' if ' and ' in text else 's'} one" for text in texts),
                    call=index,
                    op=call.op,
                    ranks=tuple(rank for camp in camps.values() for rank in camp),
                    tensor=output,
                    promise=promise.source,
                    observed=" | ".join(texts),
                    legal="identical bits on all ranks",
                )
                break
