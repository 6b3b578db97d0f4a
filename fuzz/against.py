"""The same program on a second backend: the reference is the third vote, which names the odd one out.

Backends differ in how they are called: in place, with a new tensor that they return, or into outputs of the caller's. A
translation keeps the program, its tensors' data and their layouts, and changes only that.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from corpus.case import CONTIGUOUS, MAX_NAME, WORLD, Call, Case, CaseError, Tensor
from corpus.contract import Contract, OpContract
from corpus.meaning import check, uses
from corpus.traits import traits
from fuzz.backends.base import Backend
from fuzz.runner import Outcome
from oracles.failure import RelationFailure, Verdict
from oracles.text import ranks_text


@dataclass(frozen=True, slots=True)
class Translation:
    """A case as another backend runs it.

    By call of the original: its index in `case`, and its outputs' names there, by their own. `same_tables`: what each
    output should hold is predicted from the same data in the same way, so that deviations can be compared.
    """

    case: Case
    calls: tuple[int, ...]
    outputs: tuple[Mapping[str, str], ...]
    same_tables: bool


@dataclass(frozen=True, slots=True)
class Compared:
    """What two right results came to: whether both are legal and differ, and where that is a divergence."""

    different: bool
    divergence: RelationFailure | None


def translate(case: Case, backend: Backend) -> Translation | None:
    """Return the same program for another backend's contract; None where it does not have such a program.

    A seeded fault and flags that the backend does not have are left out.
    """
    try:
        translated = _Translator(case, backend).translation()
        check(translated.case)
    except CaseError:
        return None
    return translated


class _Translator:
    """Builds a translation call by call. Raises CaseError where there is none."""

    def __init__(self, case: Case, backend: Backend) -> None:
        known = {flag.name for flag in backend.flags}
        self.case = case
        self.backend = backend
        self.flags = tuple((name, value) for name, value in case.flags if name in known)
        self.contract = backend.contract(dict(self.flags))
        self.specs = {tensor.name: tensor for tensor in case.tensors}
        self.now = {tensor.name: tensor.name for tensor in case.tensors}
        self.program: list[Call] = []
        self.calls: list[int] = []
        self.outputs: list[dict[str, str]] = []
        self.same_tables = True

    def translation(self) -> Translation:
        """The translation, not yet checked."""
        case = self.case
        if case.illegal is not None:
            raise CaseError("an illegal program is one contract's")
        for index, call in enumerate(case.program):
            given = replace(call, inputs=self._current(call.inputs), outputs=self._current(call.outputs))
            made = given if call.local else self._call(index, call, given)
            self.calls.append(len(self.program))
            self.program.append(made)
            self.outputs.append(dict(zip(call.outputs, made.outputs, strict=True)))
        memory = self.backend.memory()
        translated = replace(
            case,
            backend=self.backend.spec,
            tensors=tuple(_changed(tensor, memory=memory) for tensor in self.specs.values()),
            program=tuple(self._waited(call) for call in self.program),
            flags=self.flags,
            fault=None,
            relations=tuple(
                replace(relation, left=self._current(relation.left), right=self._current(relation.right))
                for relation in case.relations
            ),
        )
        return Translation(translated, tuple(self.calls), tuple(self.outputs), self.same_tables)

    def _current(self, names: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(self.now[name] for name in names)

    def _waited(self, call: Call) -> Call:
        return call if call.wait is None else replace(call, wait=self.calls[call.wait])

    def _call(self, index: int, call: Call, given: Call) -> Call:
        promise = self.contract.op(call.op)
        self._accept(index, call, promise)
        if not promise.async_op:
            given = replace(given, async_op=False, wait=None)
        was_in_place = bool(call.inputs) and call.inputs == call.outputs
        if promise.in_place and not was_in_place:
            return self._put_in_place(index, call, given)
        if was_in_place and not promise.in_place:
            return self._take_out(index, call, given, promise)
        if not promise.in_place:
            for name in given.outputs:
                self.specs[name] = _output(self.specs[name], returned=promise.returned)
        return given

    def _accept(self, index: int, call: Call, promise: OpContract) -> None:
        case, has = self.case, traits(self.case, index)
        ranks = case.ranks(call)
        used = {name for rank in ranks for use in (uses(case, call, rank),) for name in use.inputs + use.outputs}
        dtypes = {case.tensor(name).on(rank).dtype for name in used for rank in ranks}
        whole = call.op in ("all_gather_into_tensor", "reduce_scatter_tensor")
        if (
            not all(promise.accepts(dtype, call.reduce_op) for dtype in dtypes)
            or len(ranks) < promise.min_world
            or (has["sizes"] == "uneven" and not promise.uneven)
            or (whole and has["form"] in ("stacked", "0-dim") and not promise.stacked)
            or call.region is not None
            or call.stream
        ):
            raise CaseError(f"{self.backend.name} does not have this {call.op}")

    def _used_later(self, index: int, name: str) -> bool:
        """Whether a later call, or a relation, looks at a tensor of the original."""
        later = any(name in call.inputs + call.outputs for call in self.case.program[index + 1 :])
        return later or any(name in relation.left + relation.right for relation in self.case.relations)

    def _put_in_place(self, index: int, call: Call, given: Call) -> Call:
        """In the input itself where nobody needs it any more, else in a copy of it."""
        (source,), (output,) = call.inputs, call.outputs
        elsewhere = any(output in (*one.inputs, *one.outputs) for one in self.case.program[:index])
        view = self.specs[given.inputs[0]].spec
        if not self._used_later(index, source) and not elsewhere and view.payload is not None and not view.overlaps:
            del self.specs[given.outputs[0]]
            self.now[output] = given.inputs[0]
            return replace(given, outputs=given.inputs)
        self.specs[given.outputs[0]] = _output(self.specs[given.outputs[0]], returned=False)
        self.program.append(Call("copy", given.inputs, given.outputs, group=call.group))
        self.same_tables = False
        return replace(given, inputs=given.outputs)

    def _take_out(self, index: int, call: Call, given: Call, promise: OpContract) -> Call:
        """Into new tensors, which the later calls read."""
        if call.group != WORLD and any(self._used_later(index, name) for name in call.inputs):
            raise CaseError("ranks outside the group go on with the old tensor, those inside with a new one")
        outputs = []
        for name, current in zip(call.inputs, given.inputs, strict=True):
            fresh = self._fresh(name)
            payload = None if promise.returned else "poison"
            like = replace(self.specs[current], name=fresh, data=None)
            self.specs[fresh] = _changed(like, payload=payload, layout=CONTIGUOUS)
            self.now[name] = fresh
            outputs.append(fresh)
        return replace(given, outputs=tuple(outputs))

    def _fresh(self, name: str) -> str:
        number = 1
        while (fresh := f"{name[: MAX_NAME - 8]}_out{number}") in self.specs:
            number += 1
        return fresh


def _changed(tensor: Tensor, **changes: Any) -> Tensor:
    """A tensor whose specs are changed, on every rank."""
    return replace(
        tensor,
        spec=replace(tensor.spec, **changes),
        overrides=tuple((rank, replace(spec, **changes)) for rank, spec in tensor.overrides),
    )


def _output(tensor: Tensor, *, returned: bool) -> Tensor:
    """A tensor as an output that the library returns, or that the caller has; what holds data already keeps it."""
    if returned:
        return replace(_changed(tensor, payload=None, layout=CONTIGUOUS), data=None)
    return _changed(tensor, payload="poison") if tensor.spec.payload is None else tensor


def _predict_alike(one: Contract, other: Contract) -> bool:
    """Whether the legal result that is the predicted one is the same."""
    return (
        one.average.value[:1] == other.average.value[:1]
        and one.bool_reduction.value == other.bool_reduction.value
        and one.subnormals.value == other.subnormals.value
    )


def compare(first: Outcome, second: Outcome, translation: Translation, one: Contract, other: Contract) -> Compared:
    """Compare two outcomes without failures, output by output and rank by rank, by how each deviates from the
    prediction that they share. `one` and `other` are the contracts of the first case and of the second.

    Where either contract says nothing of the elements, that they differ is a divergence: "backends differ".
    """
    if not translation.same_tables or not _predict_alike(one, other):
        return Compared(different=False, divergence=None)
    others = _entries(second)
    different, diverging = False, []
    for (index, output, rank), entry in _entries(first).items():
        place = (translation.calls[index], translation.outputs[index].get(output, output), rank)
        theirs = others.get(place)
        if theirs is None or entry["deviations"] == theirs["deviations"]:
            continue
        if any(each["judged"].get("unspecified", 0) for each in (entry, theirs)):
            diverging.append((index, output, rank))
        else:
            different = True
    return Compared(different, _divergence(first.case, second.case, diverging) if diverging else None)


def _entries(outcome: Outcome) -> dict[tuple[int, str, int], dict[str, Any]]:
    return {
        (entry["call"], entry["output"], seen.rank): entry
        for seen in outcome.observations
        for entry in seen.reports.get("numeric", {}).get("outputs", ())
    }


def _divergence(first: Case, second: Case, places: list[tuple[int, str, int]]) -> RelationFailure:
    index, output, _ = min(places)
    call = first.program[index]
    ranks = tuple(sorted({rank for place, name, rank in places if (place, name) == (index, output)}))
    spec = first.tensor(output).on(ranks[0])
    what = f"{call.op} {call.reduce_op}" if call.reduce_op else call.op
    return RelationFailure(
        "backends differ",
        f"{what} of {spec.dtype} {spec.shape}: {first.backend} and {second.backend} give different elements on "
        f"{ranks_text(ranks)}, of which nothing is promised",
        call=index,
        op=call.op,
        ranks=ranks,
        tensor=output,
        verdict=Verdict.DIVERGENCE,
        details={"backends": [first.backend, second.backend]},
    )
