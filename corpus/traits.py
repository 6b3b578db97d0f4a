"""What a person would say of a call: the traits by which bugs are told apart and their reach is described."""

from __future__ import annotations

from corpus.case import WORLD, Call, Case, TensorSpec
from corpus.dtypes import DTYPES
from corpus.meaning import uses
from corpus.naming import parse

LARGE = 4096
"""Elements above which "large" is part of what a minimal case is about."""

PLAIN = {
    "reduce op": ("sum", "-"),
    "dtype": ("float32",),
    "input layout": ("contiguous", "-"),
    "output layout": ("contiguous", "-"),
    "payload": ("index", "-", "computed"),
    "ranks": ("2", "1"),
    "group": ("world",),
    "late": ("-",),
    "wait": ("sync",),
    "region": ("-",),
    "sizes": ("equal",),
    "form": ("-", "concatenated"),
    "mistake": ("-",),
}
"""By trait: the values that need no mention."""

IDENTITY = frozenset({"input layout", "output layout", "form", "sizes", "mistake"})
"""Traits that tell bugs apart where they are not plain: strided and lazily negated tensors fail for two reasons."""


def layout_class(spec: TensorSpec) -> str:
    """One word for where a tensor's elements lie."""
    if spec.layout.conj:
        return "conj"
    if spec.layout.neg:
        return "neg"
    if spec.overlaps:
        return "overlapping"
    if not spec.is_contiguous:
        return "strided"
    return "offset" if spec.layout.before else "contiguous"


_LAYOUTS = ("conj", "neg", "overlapping", "strided", "offset", "contiguous")


def _layouts(specs: list[TensorSpec]) -> str:
    found = {layout_class(spec) for spec in specs}
    return next((layout for layout in _LAYOUTS if layout in found), "-")


def traits(case: Case, index: int) -> dict[str, str]:
    """Return the traits of one call (the first where `index` is negative), by name."""
    call = case.program[max(index, 0)]
    inputs, outputs = specs(case, call)
    first = (inputs or outputs or [TensorSpec(())])[0]
    payloads = {spec.payload if spec.payload not in (None, "poison") else "computed" for spec in inputs}
    return {
        "reduce op": call.reduce_op or "-",
        "dtype": first.dtype,
        "input layout": _layouts(inputs),
        "output layout": _layouts(outputs),
        "payload": min(payloads) if payloads else "-",
        "ranks": str(len(case.ranks(call))),
        "group": _group(case, call),
        "late": "-" if call.late is None else "late",
        "wait": "async" if call.async_op else "sync",
        "region": "-" if call.region is None else "region",
        "sizes": "uneven" if _uneven(call, inputs + outputs) else "equal",
        "form": _form(call, inputs, outputs),
        "mistake": case.illegal or "-",
    }


def _group(case: Case, call: Call) -> str:
    ranks = case.ranks(call)
    if call.group == WORLD:
        return "world"
    return "sub-group" if list(ranks) == sorted(ranks) else "permuted-group"


def _uneven(call: Call, used: list[TensorSpec]) -> bool:
    """Whether ranks or list elements differ in shape, where a plain call has one shape for all."""
    one_shape = call.op not in ("all_gather_into_tensor", "reduce_scatter_tensor", "all_to_all_single")
    return call.splits is not None or (one_shape and len({spec.shape for spec in used}) > 1)


def _form(call: Call, inputs: list[TensorSpec], outputs: list[TensorSpec]) -> str:
    """How the large tensor of a gather or scatter holds the small ones; "0-dim" where these are scalars."""
    if call.op not in ("all_gather_into_tensor", "reduce_scatter_tensor"):
        return "0-dim" if any(not spec.shape for spec in inputs + outputs) else "-"
    small, large = inputs[0].shape, outputs[0].shape
    if call.op == "reduce_scatter_tensor":
        small, large = large, small
    if not small:
        return "0-dim"
    return "stacked" if len(large) == len(small) + 1 else "concatenated"


def specs(case: Case, call: Call) -> tuple[list[TensorSpec], list[TensorSpec]]:
    """The specs of a call's inputs and of its outputs, on every rank that passes them."""
    inputs, outputs = [], []
    for rank in case.ranks(call):
        use = uses(case, call, rank)
        inputs += [case.tensor(name).on(rank) for name in use.inputs]
        outputs += [case.tensor(name).on(rank) for name in use.outputs]
    return inputs, outputs


def elements(case: Case, index: int) -> int:
    """Elements of the largest tensor that a call takes or gives on any rank."""
    inputs, outputs = specs(case, case.program[max(index, 0)])
    return max((spec.numel for spec in inputs + outputs), default=0)


def key(case: Case, index: int, kind: str) -> str:
    """A name for a bug, from its minimal case: the backend, the collective, the symptom, and every trait worth mention.

    It does not change with the size, so the same bug found from another seed has the same name.
    """
    call = case.program[max(index, 0)]
    parts = [parse(case.backend).what, call.op, kind]
    for trait, value in traits(case, index).items():
        if value in PLAIN[trait]:
            continue
        if trait.endswith("layout") and call.inputs != call.outputs:
            value = f"{value}-{trait.removesuffix(' layout')}"
        if trait == "dtype":
            value = DTYPES[value].kind.value if DTYPES[value].format is None else value
        parts.append(f"{value}-ranks" if trait == "ranks" else value)
    count = elements(case, index)
    parts += ["empty"] if count == 0 and call.inputs else ["large"] if count > LARGE else []
    parts += [f"{name}={value}" for name, value in case.flags]
    if len(case.program) > 1 and not case.relations:
        parts.append(f"{len(case.program)}-calls")
    slug = "-".join(dict.fromkeys(parts))
    return "".join(character if character.isalnum() or character in "_=." else "-" for character in slug)[:120]
