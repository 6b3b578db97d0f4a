"""A correct library in one process, for the oracles to judge: every rank's buffers at once, torch's own arithmetic.

It is written from the documentation of torch.distributed and shares nothing with `corpus.meaning`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import reduce
from typing import Any

import numpy as np
import torch

from corpus.case import REDUCE_OPS, Call, Case, Layout, Tensor, TensorSpec, World
from corpus.codec import digest
from corpus.contract import Contract, OpContract, Promise
from corpus.dtypes import DTYPES
from corpus.meaning import check
from oracles.buffers import Buffer, build
from oracles.judge import Judgement, judge
from oracles.observation import Observation, Status
from oracles.observe import observe

Flat = torch.Tensor
Inputs = list[dict[str, Flat]]
"""By rank, then by name: the logical elements of each tensor before the call, in one dimension."""

EVERYTHING = tuple(DTYPES)
OP_CONTRACT = OpContract("documented", dtypes=EVERYTHING, reduce_ops=dict.fromkeys(REDUCE_OPS, EVERYTHING))
BITWISE = {"band": torch.bitwise_and, "bor": torch.bitwise_or, "bxor": torch.bitwise_xor}
PAIRWISE = {
    "sum": torch.add,
    "avg": torch.add,
    "product": torch.mul,
    "min": torch.minimum,
    "max": torch.maximum,
    **BITWISE,
}


def contract(**changes: Any) -> Contract:
    """A contract that takes everything and promises what it can, with changes."""
    names = ("all_reduce", "broadcast", "reduce", "all_gather_into_tensor", "all_gather", "reduce_scatter_tensor")
    names += ("reduce_scatter", "gather", "scatter", "all_to_all_single", "all_to_all", "send_recv", "barrier")
    fields: dict[str, Any] = {
        "views": Promise("right", "documented"),
        "agreement": dict.fromkeys(("all_reduce", "broadcast", "all_gather"), Promise(True, "documented")),
        **{name: Promise(value, "documented") for name, value in changes.items()},
    }
    return Contract("simulated", dict.fromkeys(names, OP_CONTRACT), **fields)


def case_of(
    op: str,
    shape: tuple[int, ...] = (6,),
    *,
    world: int = 2,
    dtype: str = "float32",
    payload: str = "wide",
    layout: Layout | None = None,
    out: Layout | str | None = "in place",
    seed: int = 0,
    **call: Any,
) -> Case:
    """A case of one call whose small tensors have this shape; "x..." go in, "y..." come out.

    `out`: "in place", "returned", or the layout of outputs that the caller allocated (None: contiguous).
    """
    lay, rows = layout or Layout(), shape[0] if shape else 1
    small = TensorSpec(shape, dtype, lay, payload=payload)
    big = TensorSpec((rows * world, *shape[1:]), dtype, payload=payload)
    many = tuple(f"x{rank}" for rank in range(world)), tuple(f"y{rank}" for rank in range(world))

    def given(spec: TensorSpec) -> TensorSpec:
        if out == "returned":
            return TensorSpec(spec.shape, dtype, payload=None)
        assert not isinstance(out, str) or out == "in place"
        return TensorSpec(spec.shape, dtype, out if isinstance(out, Layout) else Layout(), payload="poison")

    listed_in, listed_out = (
        op in ("scatter", "reduce_scatter", "all_to_all"),
        op in ("all_gather", "gather", "all_to_all"),
    )
    inputs = many[0] if listed_in else ("x",)
    outputs = many[1] if listed_out else ("y",)
    in_spec = big if op in ("reduce_scatter_tensor", "all_to_all_single") else small
    out_spec = big if op in ("all_gather_into_tensor", "all_to_all_single") else small
    if op in ("all_reduce", "broadcast", "reduce") and out == "in place":
        outputs = inputs
    tensors = [Tensor(name, in_spec) for name in inputs]
    tensors += [Tensor(name, given(out_spec)) for name in outputs if name not in inputs]
    if op in ("broadcast", "reduce", "gather", "scatter", "send_recv"):
        call.setdefault("root", 0)
    if op == "send_recv":
        call.setdefault("peer", 1)
    made = Case("simulated", World(world), tuple(tensors), (Call(op, inputs, outputs, **call),), seed=seed)
    check(made)
    return made


class Simulation:
    """All ranks' buffers of a case, and a correct run of its calls on them."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.buffers = [build(case, rank, torch.device("cpu")) for rank in range(case.world.size)]
        self.inputs: Inputs = [
            {name: flat(buffer) for name, buffer in mine.items() if buffer.view is not None} for mine in self.buffers
        ]

    def run(self, order: Callable[[list[int]], list[int]] = list) -> Simulation:
        """Run every call correctly; `order` is the order in which ranks are added up."""
        for call in self.case.program:
            for rank in self.case.ranks(call):
                for name, value in results(self.case, call, rank, self.inputs, order).items():
                    self.write(rank, name, value)
        return self

    def write(self, rank: int, name: str, value: Flat) -> None:
        """Put a result into an output, or return it."""
        buffer = self.buffers[rank][name]
        if buffer.view is None:
            buffer.returned = value.clone().reshape(buffer.spec.shape)
        else:
            with torch.no_grad():
                buffer.view.copy_(value.reshape(buffer.spec.shape))

    def judge(self, promised: Contract | None = None) -> Judgement:
        """Let the oracles look at every rank, and judge."""
        promised = promised or contract()
        return judge(
            self.case,
            promised,
            [
                Observation(
                    rank,
                    Status.OK,
                    digest(self.case),
                    len(self.case.program) - 1,
                    reports=observe(self.case, promised, rank, mine),
                )
                for rank, mine in enumerate(self.buffers)
            ],
        )

    def symptoms(self, promised: Contract | None = None) -> list[tuple[str, str]]:
        """(oracle, kind) of each failure."""
        return [(failure.oracle, failure.kind) for failure in self.judge(promised).failures]


def flat(buffer: Buffer) -> Flat:
    assert buffer.view is not None
    return buffer.view.resolve_conj().resolve_neg().contiguous().clone().reshape(-1)


def words(values: Flat) -> np.ndarray[Any, Any]:
    unsigned = {1: torch.uint8, 2: torch.uint16, 4: torch.uint32, 8: torch.uint64}[values.element_size()]
    return values.contiguous().view(unsigned).numpy()


def combine(op: str, parts: list[Flat]) -> Flat:
    """The reduction of the parts in their order, as torch computes it in their dtype."""
    if parts[0].dtype is torch.bool and op in ("sum", "max"):
        return reduce(torch.logical_or, parts)
    if parts[0].dtype is torch.bool and op in ("product", "min"):
        return reduce(torch.logical_and, parts)
    total = reduce(PAIRWISE[op], parts)
    return total / len(parts) if op == "avg" else total


def results(
    case: Case, call: Call, rank: int, inputs: Inputs, order: Callable[[list[int]], list[int]] = list
) -> Mapping[str, Flat]:
    """What each output of a rank in the world's group holds afterwards."""
    world = case.world.size
    ranks = order(list(range(world)))
    op, outs = call.op, call.outputs

    def reduced(name: str, start: int = 0, stop: int | None = None) -> Flat:
        assert call.reduce_op is not None
        return combine(call.reduce_op, [inputs[other][name][start:stop] for other in ranks])

    if op == "all_reduce":
        return {outs[0]: reduced(call.inputs[0])}
    if op == "reduce":
        return {outs[0]: reduced(call.inputs[0])} if rank == call.root else {}
    if op == "broadcast":
        assert call.root is not None
        return {outs[0]: inputs[call.root][call.inputs[0]]}
    if op == "all_gather_into_tensor":
        return {outs[0]: torch.cat([inputs[other][call.inputs[0]] for other in range(world)])}
    if op in ("all_gather", "gather"):
        if op == "gather" and rank != call.root:
            return {}
        return {outs[other]: inputs[other][call.inputs[0]] for other in range(world)}
    if op == "reduce_scatter_tensor":
        each = len(inputs[rank][call.inputs[0]]) // world
        return {outs[0]: reduced(call.inputs[0], rank * each, (rank + 1) * each)}
    if op == "reduce_scatter":
        return {outs[0]: reduced(call.inputs[rank])}
    if op == "scatter":
        assert call.root is not None
        return {outs[0]: inputs[call.root][call.inputs[rank]]}
    if op == "all_to_all_single":
        sent = [list(inputs[other][call.inputs[0]].split(_sizes(case, call, other))) for other in range(world)]
        return {outs[0]: torch.cat([sent[other][rank] for other in range(world)])}
    if op == "all_to_all":
        return {outs[other]: inputs[other][call.inputs[rank]] for other in range(world)}
    if op == "send_recv":
        assert call.root is not None
        return {outs[0]: inputs[call.root][call.inputs[0]]} if rank == call.peer else {}
    return {}


def _sizes(case: Case, call: Call, rank: int) -> list[int]:
    spec = case.tensor(call.inputs[0]).on(rank)
    row = spec.numel // max(spec.shape[0], 1)
    if call.splits is not None:
        return [rows * row for rows in call.splits[rank]]
    return [spec.numel // case.world.size] * case.world.size
