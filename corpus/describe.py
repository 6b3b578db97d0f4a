"""A case in words: one line a tensor, one line a call."""

from __future__ import annotations

from corpus.case import WORLD, Call, Case, Layout, Tensor, TensorSpec
from corpus.meaning import holders


def describe(case: Case) -> list[str]:
    """Return the smallest text from which a person sees what the program is."""
    lines = [f"{case.backend}, {case.world.size} rank{'s' * (case.world.size > 1)}"]
    lines[0] += "".join(f", group {group.name} = {list(group.ranks)}" for group in case.world.groups)
    lines[0] += "".join(f", {name}={value}" for name, value in case.flags)
    lines[0] += f", fault {case.fault}" if case.fault else ""
    lines[0] += f", {case.mode}" if case.mode != "eager" else ""
    lines += [line for tensor in case.tensors for line in _tensor(case, tensor)]
    lines += [describe_call(call) for call in case.program]
    for rank, program in case.programs:
        lines += [f"on rank {rank} instead: {'; '.join(map(describe_call, program)) or 'no call'}"]
    for relation in case.relations:
        times = f" x 2**{relation.exponent}" if relation.exponent else ""
        lines += [f"related ({relation.name}): {', '.join(relation.left)} = {', '.join(relation.right)}{times}"]
    return lines + ([f"illegal: {case.illegal}"] if case.illegal else [])


def _tensor(case: Case, tensor: Tensor) -> list[str]:
    ranks = holders(case, tensor.name)
    where = f" on rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}" if ranks else " on no rank"
    where = "" if len(ranks) == case.world.size else where
    lines = [f"{tensor.name}: {describe_spec(tensor.spec)}{where}"]
    lines += [f"{tensor.name} on rank {rank}: {describe_spec(spec)}" for rank, spec in tensor.overrides]
    if tensor.data is not None:
        data = tensor.data
        parts = [f"those of {data.tensor}"]
        parts += [f"from element {data.start} on"] if data.start else []
        parts += [f"of the rank {data.shift} further on"] if data.shift else []
        parts += [f"times 2**{data.exponent}"] if data.exponent else []
        lines.append(f"{tensor.name}'s data: {', '.join(parts)}")
    return lines


def describe_spec(spec: TensorSpec) -> str:
    """Dtype, shape, layout and payload of a tensor."""
    text = f"{spec.dtype}[{', '.join(map(str, spec.shape))}]"
    if spec.memory != "cpu":
        text += f" in {spec.memory}"
    if spec.layout != Layout():
        text += f", {_layout(spec)}"
    if spec.payload is None:
        return f"{text}, returned by the call"
    return f"{text}, {'an output' if spec.payload == 'poison' else f'{spec.payload} data'}"


def _layout(spec: TensorSpec) -> str:
    layout = spec.layout
    parts = []
    if not spec.is_contiguous:
        parts.append(f"strides ({', '.join(map(str, spec.strides))}{',' * (len(spec.shape) == 1)})")
    if layout.before:
        parts.append(f"storage offset {layout.before}")
    if layout.after:
        parts.append(f"{layout.after} more elements behind")
    if layout.conj:
        parts.append("lazily conjugated")
    if layout.neg:
        parts.append("lazily negated")
    return ", ".join(parts) or "contiguous"


def describe_call(call: Call) -> str:
    """A call as a person would write it."""
    arguments = [", ".join(call.inputs)]
    if call.outputs and call.outputs != call.inputs:
        arguments.append(f"out={', '.join(call.outputs)}")
    for name in ("reduce_op", "root", "peer", "factor"):
        value = getattr(call, name)
        if value is not None:
            arguments.append(f"{name}={value}")
    if call.splits is not None:
        arguments.append(f"splits={[list(row) for row in call.splits]}")
    if call.group != WORLD:
        arguments.append(f"group={call.group}")
    if call.async_op:
        arguments.append("async_op=True")
    text = f"{call.op}({', '.join(argument for argument in arguments if argument)})"
    if call.region is not None:
        text += f", in region {call.region}"
    if call.wait is not None:
        text += f", waited for after call {call.wait}"
    return text + (f", rank {call.late} of the group late" if call.late is not None else "")
