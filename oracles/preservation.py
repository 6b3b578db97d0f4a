"""Nothing but the outputs changed: inputs, the memory around and between the elements of a view, buffers that a call
leaves alone; and what the library returns shares no memory with what it was given.

Everything is compared bit for bit. What the outputs themselves hold is the numeric oracle's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from corpus.case import Call, Case
from corpus.contract import Contract
from corpus.meaning import uses, writes
from oracles.compare import Positions, changed
from oracles.contents import Contents
from oracles.expectation import expected
from oracles.failure import PreservationFailure
from oracles.observation import Observation
from oracles.text import counted, element, ranks_text

if TYPE_CHECKING:
    import torch

    from oracles.buffers import Buffer

_WORTH_A_LOOK = 4096
"""Changed elements that are compared with the call's result, to say what an input holds now."""


@dataclass(frozen=True, slots=True)
class _Role:
    """What one tensor is to the program on one rank.

    `call` is the call that writes it, or else the first that is given it. `free`: the view may change; `left_alone`: it
    is an output on other ranks only. `unspecified`: the contract says nothing of it, `allowed`: lets it change.
    """

    call: int
    free: bool
    left_alone: bool
    unspecified: bool
    allowed: bool


def observe(contents: Contents, rank: int, buffers: Mapping[str, Buffer]) -> dict[str, Any]:
    """Look at every tensor on `rank` (global), and at what it held before a call overwrote what another had read.

    Returns {"changes": [...], "unspecified": n, "allowed": n}: a change is "call" (index), "tensor", "kind", "text"
    (what changed, in words) and, where memory changed, "count" (elements); `unspecified` and `allowed` count the
    buffers that were not looked at because the contract says nothing of them, or lets them change.
    """
    case, contract = contents.case, contents.contract
    changes: list[dict[str, Any]] = []
    unspecified = allowed = 0
    roles = {name: _role(case, contract, rank, name) for name in buffers}
    for name, buffer in buffers.items():
        role = roles[name]
        unspecified += role.unspecified
        allowed += role.allowed
        if buffer.spec.payload is None:
            changes += _aliases(case, contract, rank, buffers, name)
        else:
            changes += _metadata(buffer, role)
            changes += _overwritten(contents, buffer)
            changes += _memory(contents, buffer, role)
    return {"changes": changes, "unspecified": unspecified, "allowed": allowed}


def _role(case: Case, contract: Contract, rank: int, name: str) -> _Role:
    first = writer = -1
    left_alone = unspecified = allowed = False
    numel = case.tensor(name).on(rank).numel
    for index, call in enumerate(case.program):
        use = uses(case, call, rank)
        if name not in use.inputs + use.outputs:
            continue
        first = index if first < 0 else first
        if name in writes(case, call, rank):
            writer = index
        elif name in use.outputs:
            left_alone = True
            unspecified |= call.op == "reduce" and contract.reduce_others.value == "unspecified"
        elif _may_reduce_in_place(contract, call, numel):
            allowed = True
    written = writer >= 0
    return _Role(
        call=writer if written else first,
        free=written or unspecified or allowed,
        left_alone=left_alone and not written,
        unspecified=unspecified and not written,
        allowed=allowed and not written,
    )


def _may_reduce_in_place(contract: Contract, call: Call, numel: int) -> bool:
    return call.op == "all_reduce" and 0 < contract.in_place_from.value <= numel


def _metadata(buffer: Buffer, role: _Role) -> Iterator[dict[str, Any]]:
    """The view is still what the library was given."""
    view, base, spec = buffer.view, buffer.base, buffer.spec
    assert view is not None
    assert base is not None
    given = {
        "shape": (tuple(view.shape), spec.shape),
        "strides": (tuple(view.stride()), spec.strides),
        "storage offset": (view.storage_offset(), spec.layout.before),
        "conj bit": (view.is_conj(), spec.layout.conj),
        "neg bit": (view.is_neg(), spec.layout.neg),
        "dtype": (str(view.dtype).removeprefix("torch."), spec.dtype),
        "storage": (view.untyped_storage().data_ptr(), base.untyped_storage().data_ptr()),
    }
    for what, (now, before) in given.items():
        if now != before:
            text = "it has another storage" if what == "storage" else f"its {what} was {before} and is {now}"
            yield {"call": role.call, "tensor": buffer.name, "kind": "tensor metadata changed", "text": text}


def _overwritten(contents: Contents, buffer: Buffer) -> Iterator[dict[str, Any]]:
    """What calls have read, and a later one has overwritten, was as it had been until then."""
    if not buffer.saved:
        return
    first = contents.overwritten(buffer.name, buffer.rank, -1)
    if first is None or first not in buffer.saved:
        return
    case = contents.case
    calls = enumerate(case.program[:first])
    reader = next((index for index, call in calls if buffer.name in uses(case, call, buffer.rank).inputs), None)
    if reader is None:
        return  # an output that an earlier call left alone, or a buffer of its own
    if _may_reduce_in_place(contents.contract, case.program[reader], buffer.spec.numel):
        return
    role = _Role(reader, free=False, left_alone=False, unspecified=False, allowed=False)
    yield from (
        change for change in _memory(contents, buffer, role, before=first) if change["kind"] != "neighbours changed"
    )


def _memory(contents: Contents, buffer: Buffer, role: _Role, before: int | None = None) -> Iterator[dict[str, Any]]:
    """The base storage holds what it held, except where the view may change; now, or before call `before`."""
    spec = buffer.spec
    words = buffer.words(before)
    begin, end = spec.layout.before, spec.layout.before + spec.span
    view = np.empty(0, dtype=np.int64)
    between = view
    if spec.is_contiguous and not (spec.layout.conj or spec.layout.neg):
        front = changed(words[:begin], buffer.guard, 0) if begin else view
        after = end + changed(words[end:], buffer.guard, end) if end < len(words) else view
        if not role.free and spec.numel:
            view = begin + changed(words[begin:end], buffer.payload)
    else:
        front, between, after, view = _strided_memory(buffer, words, role)
    around = np.concatenate((front, between, after))
    if len(around):
        places = [
            f"{len(some):,} {where}"
            for some, where in ((front, "before it"), (between, "between its strides"), (after, "after it"))
            if len(some)
        ]
        yield {
            "call": role.call,
            "tensor": buffer.name,
            "kind": "neighbours changed",
            "count": len(around),
            "text": f"elements of the base storage that are not the view's changed ({', '.join(places)}): "
            + _first_change(buffer, words, around),
        }
    if len(view):
        holds = _holds_result(contents, buffer, words, view, role)
        yield {
            "call": role.call,
            "tensor": buffer.name,
            "kind": "buffer changed" if role.left_alone else "input changed",
            "count": len(view),
            "text": f"{len(view):,} of {counted(spec.numel, 'element')} changed{holds}: "
            + _first_change(buffer, words, view),
        }


def _strided_memory(buffer: Buffer, words: Any, role: _Role) -> tuple[Positions, Positions, Positions, Positions]:
    """Changed places of the base storage: before the view, between its strides, after it, and its own."""
    from oracles.buffers import strided

    spec = buffer.spec
    initial = np.empty_like(words)
    buffer.write_initial(initial)
    if role.free and spec.numel:
        strided(initial, spec)[...] = strided(words, spec)
    differs = initial != words
    places = np.flatnonzero(differs if differs.ndim == 1 else differs.any(axis=1))
    if not len(places):
        return places, places, places, places
    mine = np.zeros(len(words), dtype=bool)
    if spec.numel:
        strided(mine, spec)[...] = True
    begin, end = spec.layout.before, spec.layout.before + spec.span
    own, others = places[mine[places]], places[~mine[places]]
    before, after = others[others < begin], others[others >= end]
    return before, others[(others >= begin) & (others < end)], after, own


def _first_change(buffer: Buffer, words: Any, places: Positions) -> str:
    place = int(places[0])
    initial = np.empty_like(words)
    buffer.write_initial(initial)
    offset = place - buffer.spec.layout.before
    return (
        f"{'+' if offset >= 0 else ''}{offset} elements from its first, {element(initial[place], buffer.dtype)} became "
        f"{element(words[place], buffer.dtype)}"
    )


def _holds_result(contents: Contents, buffer: Buffer, words: Any, places: Positions, role: _Role) -> str:
    """ ", and hold the call's result" where a changed contiguous tensor does."""
    case, call = contents.case, contents.case.program[role.call]
    if not buffer.spec.is_contiguous:
        return ""
    sample = places[:: max(1, len(places) // _WORTH_A_LOOK)]
    for output in call.outputs:
        for rank in case.ranks(call):
            found = contents.parts(role.call, rank, output)
            if found and np.array_equal(expected(found, sample - buffer.spec.layout.before), words[sample]):
                return ", and hold the call's result"
    return ""


def _aliases(
    case: Case, contract: Contract, rank: int, buffers: Mapping[str, Buffer], name: str
) -> Iterator[dict[str, Any]]:
    """A returned tensor shares no storage with a tensor of the program, and no elements with another returned one."""
    mine = buffers[name].returned
    if mine is None or not mine.numel():
        return
    index = next(index for index, call in enumerate(case.program) if name in uses(case, call, rank).outputs)
    call = case.program[index]
    storage = _storage(mine)
    for other, buffer in buffers.items():
        if buffer.base is not None and _overlap(storage, _storage(buffer.base)):
            given = other in uses(case, call, rank).inputs
            if given and _may_reduce_in_place(contract, call, buffer.spec.numel):
                continue
            kind = "output aliases input" if given else "output aliases another tensor"
            text = f"the returned tensor shares its storage with {'input ' if given else ''}{other}"
        elif other < name and buffer.returned is not None and _overlap(_elements(mine), _elements(buffer.returned)):
            kind, text = "output aliases another tensor", f"the returned tensor shares memory with the returned {other}"
        else:
            continue
        yield {"call": index, "tensor": name, "kind": kind, "text": text}


def _storage(tensor: torch.Tensor) -> tuple[int, int]:
    storage = tensor.untyped_storage()
    return storage.data_ptr(), storage.data_ptr() + storage.nbytes()


def _elements(tensor: torch.Tensor) -> tuple[int, int]:
    """Addresses from the first element to the end of the last one; (0, 0) where there is none."""
    if not tensor.numel():
        return 0, 0
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    span = 1 + sum((extent - 1) * stride for extent, stride in steps)
    return tensor.data_ptr(), tensor.data_ptr() + span * tensor.element_size()


def _overlap(one: tuple[int, int], other: tuple[int, int]) -> bool:
    return max(one[0], other[0]) < min(one[1], other[1])


def judge(case: Case, contract: Contract, observations: Sequence[Observation]) -> Iterator[PreservationFailure]:
    """One failure a call and kind, in the order of the program; what the ranks saw is merged."""
    found: dict[tuple[int, str], list[tuple[int, dict[str, Any]]]] = {}
    for observation in observations:
        for change in observation.reports.get("preservation", {}).get("changes", ()):
            found.setdefault((change["call"], change["kind"]), []).append((observation.rank, change))
    for (index, kind), seen in sorted(found.items()):
        call = case.program[index]
        ranks = tuple(sorted({rank for rank, _ in seen}))
        rank, first = min(seen, key=lambda item: item[0])
        yield PreservationFailure(
            kind,
            f"{call.op}: {kind} on {ranks_text(ranks)}; on rank {rank}, {first['tensor']}: {first['text']}",
            call=index,
            op=call.op,
            ranks=ranks,
            tensor=first["tensor"],
            promise=_promise(contract, call, kind),
            observed=first["text"],
            details={"ranks": {str(rank): change for rank, change in seen}},
        )


def _promise(contract: Contract, call: Call, kind: str) -> str:
    if kind == "buffer changed":
        return contract.reduce_others.source
    if kind in ("input changed", "output aliases input") and call.op == "all_reduce":
        return contract.in_place_from.source
    return "a call writes its outputs and nothing else"
