"""Results that belong together are the same bits, or differ by the power of two that they should.

Both sides may be legal and still differ, where a contract leaves something open: whether a NaN wins a MAX, or the order
of additions. So a difference is a divergence, and it is told only where the numeric oracle finds neither side wrong.
NaN counts as NaN whatever its payload, unless the results are copies.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from corpus.case import Case, Relation
from corpus.contract import Contract
from corpus.dtypes import DType
from corpus.meaning import writes
from corpus.payload import Bits, scaled
from oracles.contents import Contents
from oracles.failure import RelationFailure, Verdict
from oracles.observation import Observation
from oracles.rounding import canonical
from oracles.text import counted, element, ranks_text

if TYPE_CHECKING:
    from oracles.buffers import Buffer

SHOWN: Final = 3
"""Differing elements that are shown."""


def observe(contents: Contents, rank: int, buffers: Mapping[str, Buffer]) -> dict[str, Any]:
    """Compare the two sides of each relation on `rank` (global), where all of its tensors were written there.

    Returns {"compared": [...]}, one entry a relation: "relation" (index), "elements" (how many were compared),
    "differ" (how many differ), and "first" (the first that do: index, left, right; in words).
    """
    case = contents.case
    compared = []
    for index, relation in enumerate(case.relations):
        names = relation.left + relation.right
        if not all(_written(case, name, rank) for name in names) or not all(map(_formed, map(buffers.get, names))):
            continue
        compared.append({"relation": index, **_compare(case, relation, buffers)})
    return {"compared": compared}


def _written(case: Case, name: str, rank: int) -> bool:
    return any(name in writes(case, call, rank) for call in case.program)


def _formed(buffer: Buffer | None) -> bool:
    """Whether the tensor is there, of the shape and dtype that it should have: otherwise the numeric oracle speaks."""
    if buffer is None or buffer.spec.payload is not None:
        return buffer is not None
    returned = buffer.returned
    dtype = f"torch.{buffer.spec.dtype}"
    return returned is not None and (tuple(returned.shape), str(returned.dtype)) == (buffer.spec.shape, dtype)


def _compare(case: Case, relation: Relation, buffers: Mapping[str, Buffer]) -> dict[str, Any]:
    left, right = (_joined([buffers[name] for name in names]) for names in (relation.left, relation.right))
    count = min(len(left), len(right))
    left, right = left[:count], right[:count]
    dtype = buffers[relation.right[0]].dtype
    if _reduced(case, relation):
        left, right = canonical(left, dtype.format), canonical(right, dtype.format)
    differs = _unlike(left, right, dtype, relation.exponent)
    places = np.flatnonzero(differs if differs.ndim == 1 else differs.any(axis=1))
    return {
        "elements": count,
        "differ": len(places),
        "first": [
            {"index": int(place), "left": element(left[place], dtype), "right": element(right[place], dtype)}
            for place in places[:SHOWN]
        ],
    }


def _joined(buffers: list[Buffer]) -> Bits:
    """The elements of tensors one after another."""
    return buffers[0].bits() if len(buffers) == 1 else np.concatenate([buffer.bits() for buffer in buffers])


def _reduced(case: Case, relation: Relation) -> bool:
    """Whether some tensor of the relation is the result of a reduction."""
    names = {*relation.left, *relation.right}
    return any(call.reduce_op is not None and names & {*call.outputs} for call in case.program)


def _unlike(left: Bits, right: Bits, dtype: DType, exponent: int) -> npt.NDArray[np.bool_]:
    """Which words of `left` are not those of `right` times 2**`exponent`.

    Words are passed over whose scaled value is not the same digits with another exponent: subnormal ones, and those
    that are infinite or NaN or become so.
    """
    if exponent == 0 or dtype.format is None:
        return np.asarray(left != right)
    fmt = dtype.format
    biased = (right & right.dtype.type((1 << (fmt.bits - 1)) - 1)) >> right.dtype.type(fmt.mantissa)
    zero = right & right.dtype.type((1 << (fmt.bits - 1)) - 1) == 0
    moved = biased.astype(np.int64) + exponent
    # The highest exponent is left alone in every format: some have infinities there, some have numbers.
    plain = (biased > 0) & (moved > 0) & (np.maximum(moved, biased) < (1 << fmt.exponent) - 1)
    return np.asarray((left != scaled(right, dtype, exponent)) & (plain | zero))


def judge(case: Case, contract: Contract, observations: Sequence[Observation]) -> Iterator[RelationFailure]:
    """One failure "<relation> differs" a relation, where neither side is wrong on any rank."""
    for index, relation in enumerate(case.relations):
        names = {*relation.left, *relation.right}
        entries = [
            (seen.rank, entry)
            for seen in observations
            for entry in seen.reports.get("relations", {}).get("compared", ())
            if entry["relation"] == index and entry["differ"]
        ]
        if entries and not any(_wrong(seen, names) for seen in observations):
            yield _differs(case, relation, sorted(entries, key=lambda item: item[0]))


def _wrong(seen: Observation, names: set[str]) -> bool:
    outputs = seen.reports.get("numeric", {}).get("outputs", ())
    return any(entry["output"] in names and (entry["wrong"] or entry["form"]) for entry in outputs)


def _differs(case: Case, relation: Relation, entries: list[tuple[int, dict[str, Any]]]) -> RelationFailure:
    """The failure of the call whose results are the right side."""
    call, program = next((i, one) for i, one in enumerate(case.program) if relation.right[0] in one.outputs)
    ranks = tuple(rank for rank, _ in entries)
    rank, entry = entries[0]
    spec = case.tensor(relation.right[0]).on(rank)
    what = f"{program.op} {program.reduce_op}" if program.reduce_op else program.op
    left, right = ", ".join(relation.left), ", ".join(relation.right)
    times = f" times 2**{relation.exponent}" if relation.exponent else ""
    first = entry["first"][0]
    return RelationFailure(
        f"{relation.name} differs",
        f"{what} of {spec.dtype} {spec.shape}: {relation.name}: {left} should be {right}{times}, and is not on "
        f"{ranks_text(ranks)}; on rank {rank} {entry['differ']:,} of {counted(entry['elements'], 'element')} differ, "
        f"the first at {first['index']}: {first['left']}, and {first['right']}. Each result is legal by itself",
        call=call,
        op=program.op,
        ranks=ranks,
        tensor=relation.left[0],
        verdict=Verdict.DIVERGENCE,
        observed="; ".join(f"[{item['index']}] {item['left']}" for item in entry["first"]),
        legal="; ".join(f"[{item['index']}] {item['right']}{times}" for item in entry["first"]),
        details={"relation": relation.name, "ranks": {str(one): item for one, item in entries}},
    )
