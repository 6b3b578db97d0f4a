"""The neighbours of a failing case: one trait changed at a time, to say how far a bug reaches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

from corpus.case import CONTIGUOUS, WORLD, Call, Case, CaseError, Group, Layout, TensorSpec, contiguous_strides
from corpus.contract import Contract
from corpus.dtypes import DTYPES, Kind
from corpus.meaning import check
from corpus.traits import PLAIN, elements, layout_class, traits

PAYLOADS = ("index", "exact", "wide", "special")


@dataclass(frozen=True, slots=True)
class Variation:
    """A neighbour: `trait` has `value` instead of the minimal case's own."""

    trait: str
    value: str
    case: Case


def variations(case: Case, index: int, contract: Contract, memory: int) -> Iterator[Variation]:
    """Neighbours of a case that the contract allows and that fit the memory budget (bytes a rank), plainest first.

    What is changed is the call that failed, and of other calls no more than has to go with it. An illegal program has
    no neighbours.
    """
    index = max(index, 0)
    call = case.program[index]
    if case.illegal is not None or call.local:
        return  # a neighbour has another mistake; a local computation is nobody's bug
    has = traits(case, index)
    for trait, values in _values(case, call, index, contract).items():
        for value in values:
            if value == has.get(trait) or (case.relations and trait in _RELATED):
                continue
            changed = _CHANGES[trait](case, index, value)
            if changed is None or changed == case or changed.memory() > memory:
                continue
            now = traits(changed, index)
            if not contract.op(call.op).accepts(now["dtype"], changed.program[index].reduce_op) and now["dtype"] != "-":
                continue
            yield Variation(trait, value, changed)


def _values(case: Case, call: Call, index: int, contract: Contract) -> dict[str, tuple[str, ...]]:
    op = contract.op(call.op)
    dtype = traits(case, index)["dtype"]
    dtypes = op.dtypes if call.reduce_op is None else op.reduce_ops.get(call.reduce_op, ())
    sizes: tuple[int, ...] = ()
    if _resizable(case, call):
        count = elements(case, index)
        around = {count - 1, count // 2, count + 1, count * 2, 1024, 65536}
        sizes = tuple(sorted(size for size in around if 0 < size != count))
    return {
        "input layout": ("contiguous", "offset", "strided"),
        "output layout": ("contiguous", "offset", "strided"),
        "reduce op": tuple(name for name, accepted in op.reduce_ops.items() if dtype in accepted),
        "dtype": dtypes if call.inputs else (),
        "payload": PAYLOADS if call.inputs else (),
        "wait": ("sync", "async") if op.async_op else (),
        "elements": tuple(str(size) for size in sizes),
        "ranks": ("2", "3", "4") if _resizable(case, call) and call.group == "world" else (),
    }


def _resizable(case: Case, call: Call) -> bool:
    """Whether one extent and the world's size can be changed without changing the shape of the program."""
    tensors = [case.tensor(name) for name in {*call.inputs, *call.outputs}]
    plain = all(len(tensor.spec.shape) == 1 and not tensor.overrides for tensor in tensors)
    return call.op in ("all_reduce", "broadcast", "reduce") and plain and len(case.program) == 1


def _legal(change: Callable[[], Case]) -> Case | None:
    try:
        changed = change()
        check(changed)
    except CaseError:
        return None
    return changed


def _with_specs(case: Case, names: tuple[str, ...], change: Callable[[TensorSpec], TensorSpec]) -> Case:
    tensors = tuple(
        replace(
            tensor,
            spec=change(tensor.spec),
            overrides=tuple((rank, change(spec)) for rank, spec in tensor.overrides),
        )
        if tensor.name in names
        else tensor
        for tensor in case.tensors
    )
    return replace(case, tensors=tensors)


def _with_call(case: Case, index: int, call: Call) -> Case:
    return replace(case, program=(*case.program[:index], call, *case.program[index + 1 :]))


def _layout(spec: TensorSpec, value: str) -> TensorSpec:
    if spec.payload is None:
        return spec
    if value == "contiguous":
        return replace(spec, layout=CONTIGUOUS)
    if value == "offset":
        return replace(spec, layout=Layout(before=1, after=1))
    return replace(spec, layout=Layout(strides=tuple(2 * stride for stride in contiguous_strides(spec.shape))))


def _inputs(case: Case, index: int, value: str) -> Case | None:
    names = case.program[index].inputs
    return _legal(lambda: _with_specs(case, names, lambda spec: _layout(spec, value)))


def _outputs(case: Case, index: int, value: str) -> Case | None:
    call = case.program[index]
    names = tuple(name for name in call.outputs if name not in call.inputs)
    return _legal(lambda: _with_specs(case, names, lambda spec: _layout(spec, value)))


def _reduce_op(case: Case, index: int, value: str) -> Case | None:
    return _legal(lambda: _with_call(case, index, replace(case.program[index], reduce_op=value, factor=None)))


def _dtype(case: Case, index: int, value: str) -> Case | None:
    def change(spec: TensorSpec) -> TensorSpec:
        kind = DTYPES[value].kind
        layout = spec.layout
        if layout.conj and kind is not Kind.COMPLEX:
            layout = replace(layout, conj=False)
        if layout.neg and kind not in (Kind.FLOAT, Kind.COMPLEX, Kind.SIGNED):
            layout = replace(layout, neg=False)
        return replace(spec, dtype=value, layout=layout)

    if case.illegal == "unsupported dtype":
        return None
    call = case.program[index]
    return _legal(lambda: _with_specs(case, _of_one_dtype(case, call), change))


def _of_one_dtype(case: Case, call: Call) -> tuple[str, ...]:
    """The tensors of a call, and those that must have their dtype: the other tensors of a call of one of them."""
    names = {*call.inputs, *call.outputs}
    while True:
        more = {name for each in case.program if names & {*each.inputs, *each.outputs} for name in each.inputs}
        more |= {name for each in case.program if names & {*each.inputs, *each.outputs} for name in each.outputs}
        more |= _of_one_payload(case, names)
        if more <= names:
            return tuple(names)
        names |= more


def _of_one_payload(case: Case, names: Iterable[str]) -> set[str]:
    """Tensors, those that they take their data from, and all that take theirs from one of these."""
    origins = {tensor.name: tensor.data.tensor if tensor.data else tensor.name for tensor in case.tensors}
    given = {origins[name] for name in names}
    return {name for name, origin in origins.items() if origin in given}


def _payload(case: Case, index: int, value: str) -> Case | None:
    def change(spec: TensorSpec) -> TensorSpec:
        # What an earlier call wrote has no payload of its own.
        return spec if spec.payload in (None, "poison") else replace(spec, payload=value)

    names = tuple(_of_one_payload(case, case.program[index].inputs))
    return _legal(lambda: _with_specs(case, names, change))


def _wait(case: Case, index: int, value: str) -> Case | None:
    call = case.program[index]
    flies = value == "async"
    return _legal(lambda: _with_call(case, index, replace(call, async_op=flies, wait=call.wait if flies else None)))


def _elements(case: Case, index: int, value: str) -> Case | None:
    def change(spec: TensorSpec) -> TensorSpec:
        return replace(spec, shape=(int(value),))

    call = case.program[index]
    return _legal(lambda: _with_specs(case, call.inputs + call.outputs, change))


def _ranks(case: Case, index: int, value: str) -> Case | None:
    size = int(value)
    if any(member is not None and member >= size for member in (case.program[index].root, case.program[index].peer)):
        return None
    return _legal(lambda: replace(case, world=replace(case.world, size=size)))


_RELATED = frozenset({"reduce op", "dtype", "payload", "ranks"})
"""Traits on which it depends whether results are related at all."""

_CHANGES: dict[str, Callable[[Case, int, str], Case | None]] = {
    "input layout": _inputs,
    "output layout": _outputs,
    "reduce op": _reduce_op,
    "dtype": _dtype,
    "payload": _payload,
    "wait": _wait,
    "elements": _elements,
    "ranks": _ranks,
}


def plainer(case: Case, index: int, contract: Contract) -> Iterator[Variation]:
    """The case with one trait at a time made plain, where it is not: what does not matter to a bug can go.

    What the contract does not list is not plainer: it may fail for a reason of its own.

    Of layouts, only those of the case's own class are made contiguous: another class among them stays.
    """
    has = traits(case, max(index, 0))
    call = case.program[max(index, 0)]
    outputs = tuple(name for name in call.outputs if name not in call.inputs)
    own = {"input layout": call.inputs, "output layout": outputs}
    for trait, value in has.items():
        if value in PLAIN[trait] or trait not in _CHANGES or (case.relations and trait in _RELATED):
            continue
        plain = PLAIN[trait][0]
        if trait in own:
            changed = _legal(lambda trait=trait, value=value: _dense(case, own[trait], value))  # type: ignore[misc]
        else:
            changed = _CHANGES[trait](case, max(index, 0), plain)
        if changed is not None and changed != case and _listed(changed, max(index, 0), contract):
            yield Variation(trait, plain, changed)
    yield from _simpler(case)


def _listed(case: Case, index: int, contract: Contract) -> bool:
    """Whether the contract lists the dtype and reduce op of a call; of an illegal program that is not asked."""
    call = case.program[index]
    if case.illegal is not None or call.local or not call.inputs + call.outputs:
        return True
    return contract.op(call.op).accepts(traits(case, index)["dtype"], call.reduce_op)


def _dense(case: Case, names: tuple[str, ...], layout: str) -> Case:
    return _with_specs(
        case, names, lambda spec: replace(spec, layout=CONTIGUOUS) if layout_class(spec) == layout else spec
    )


def _simpler(case: Case) -> Iterator[Variation]:
    """The case without what ties its calls together, one tie at a time."""

    def candidates() -> Iterator[tuple[str, str, Callable[[], Case]]]:
        for place in range(len(case.relations)):
            fewer = case.relations[:place] + case.relations[place + 1 :]
            yield "relations", "fewer", lambda fewer=fewer: replace(case, relations=fewer)  # type: ignore[misc]
        for index, call in enumerate(case.program):
            for trait, value, changed in _prompt(call):
                yield trait, value, lambda index=index, changed=changed: _with_call(case, index, changed)  # type: ignore[misc]
        for tensor in () if case.relations else case.tensors:
            own = tuple(replace(one, data=None) if one is tensor else one for one in case.tensors)
            yield "data", "its own", lambda own=own: replace(case, tensors=own)  # type: ignore[misc]
        for group in case.world.groups:
            yield from _regrouped(case, group)

    for trait, value, change in candidates():
        changed = _legal(change)
        if changed is not None and changed != case:
            yield Variation(trait, value, changed)


def _prompt(call: Call) -> Iterator[tuple[str, str, Call]]:
    """The call, waited for at once, begun on time, or in no region."""
    if call.wait is not None:
        yield "wait", "at once", replace(call, wait=None)
    if call.late is not None:
        yield "late", "-", replace(call, late=None)
    if call.region is not None:
        yield "region", "-", replace(call, region=None)


def _regrouped(case: Case, group: Group) -> Iterator[tuple[str, str, Callable[[], Case]]]:
    """Calls of a group in the world, in another group of the same ranks, or in one whose ranks are in order."""
    ranks = tuple(sorted(group.ranks))
    if ranks == tuple(range(case.world.size)):
        yield "group", "world", lambda: _moved(case, group, None)
    twin = next(one for one in case.world.groups if one.ranks == group.ranks)
    if twin != group:
        yield "group", "another's", lambda: _moved(case, group, twin)
    if ranks != group.ranks:
        yield "group", "in order", lambda: _moved(case, group, replace(group, ranks=ranks))


def _moved(case: Case, group: Group, to: Group | None) -> Case:
    """The case with every call of a group moved to another one of the same ranks (None: the world), which replaces it.

    The same ranks are roots, peers and late, and send the same to one another.
    """
    ranks = tuple(range(case.world.size)) if to is None else to.ranks

    def member(old: int | None) -> int | None:
        return None if old is None else ranks.index(group.ranks[old])

    def call_there(call: Call) -> Call:
        if call.group != group.name:
            return call
        splits = call.splits
        if splits is not None:
            order = [group.ranks.index(rank) for rank in ranks]
            splits = tuple(tuple(splits[sender][receiver] for receiver in order) for sender in order)
        return replace(
            call,
            group=WORLD if to is None else to.name,
            root=member(call.root),
            peer=member(call.peer),
            late=member(call.late),
            splits=splits,
        )

    kept = [one for one in case.world.groups if one.name != group.name and (to is None or one.name != to.name)]
    groups = {one.name: one for one in (*kept, *(() if to is None else (to,)))}
    names = [to.name if to is not None and one == group else one.name for one in case.world.groups]
    ordered = tuple(groups[name] for name in dict.fromkeys(names) if name in groups)
    return replace(
        case,
        world=replace(case.world, groups=ordered),
        program=tuple(map(call_there, case.program)),
        programs=tuple((rank, tuple(map(call_there, program))) for rank, program in case.programs),
    )


@dataclass(frozen=True, slots=True)
class Reach:
    """Where a bug shows: by trait, the values that failed and those that passed, all else as in the minimal case."""

    failed: dict[str, tuple[str, ...]]
    passed: dict[str, tuple[str, ...]]

    def sentences(self) -> list[str]:
        """One line a trait, for a person."""
        lines = []
        for trait in dict.fromkeys((*self.failed, *self.passed)):
            parts = [
                f"{verb} for {', '.join(values)}"
                for verb, values in (("fails", self.failed.get(trait, ())), ("passes", self.passed.get(trait, ())))
                if values
            ]
            lines.append(f"{trait}: {'; '.join(parts)}")
        return lines
