"""What the oracles see inside a rank, beside its tensors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from corpus.case import Case
from corpus.contract import Contract
from oracles import fold, numeric, preservation, relations
from oracles.contents import Contents

if TYPE_CHECKING:
    from oracles.buffers import Buffer


def observe(case: Case, contract: Contract, rank: int, buffers: Mapping[str, Buffer]) -> dict[str, Any]:
    """Return what each oracle's observing half saw on `rank` (global), by oracle name: small and JSON-able."""
    contents = Contents(case, contract)
    reports = {
        "numeric": numeric.observe(contents, rank, buffers),
        "preservation": preservation.observe(contents, rank, buffers),
    }
    reports["fold"] = fold.observe(contents, rank, buffers, reports["numeric"]["outputs"])
    if case.relations:
        reports["relations"] = relations.observe(contents, rank, buffers)
    return reports
