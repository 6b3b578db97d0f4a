"""A model of vLLM's out-of-place all-reduce operator and its PyNccl path, moving real data over gloo.

It is written from the documentation of vLLM and from report A, for a fork whose code is not public; it is not vLLM.
The operator is registered as vLLM registers its own (`direct_register_custom_op` without `mutates_args`): a caller,
and a compiler, may read the input again after the call.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar

from corpus.case import Call, Case
from corpus.contract import Contract, OpContract, Promise
from corpus.flags import Flag, Scope
from corpus.thresholds import FAMOUS
from fuzz.backends.c10d import C10d
from fuzz.backends.gloo import REDUCIBLE

if TYPE_CHECKING:
    import torch

IN_PLACE_FROM = FAMOUS.size
"""Elements from which the fork of report A reduced in place."""

FAULT = "inplace-above-threshold"

_TABLE = "report A: VLLM_INPLACE_AR_MIN unset: 0 (never in place), or 4194304 with VLLM_V41_PACKED_KV=1; else its value"


def resolve(flags: Mapping[str, str]) -> int:
    """Elements from which an all-reduce is in place (0: never), by report A's table of resolution."""
    given = flags.get("VLLM_INPLACE_AR_MIN")
    if given is not None:
        return int(given)
    return IN_PLACE_FROM if flags.get("VLLM_V41_PACKED_KV") == "1" else 0


class VllmModel(C10d):
    """vLLM's out-of-place all-reduce as report A describes it, correct unless a fault is named."""

    name = "vllm-model"
    summary = "a model of vLLM's out-of-place all-reduce (report A), over gloo"
    process_group = "gloo"
    thresholds = (FAMOUS,)
    flags = (
        # Values that keep the operator out of place are drawn. A person may set others, and the contract follows.
        Flag("VLLM_INPLACE_AR_MIN", ("0",), Scope.CALL, _TABLE),
        Flag("VLLM_V41_PACKED_KV", ("0",), Scope.CALL, _TABLE),
    )
    faults: ClassVar[Mapping[str, str]] = {
        FAULT: "report A: without any flag, 4,194,304 elements or more are reduced in place in the input"
    }

    def contract(self, flags: Mapping[str, str]) -> Contract:
        """Out of place: a new tensor is returned and the input stays, unless the flags ask for the in-place path."""
        reduce_ops = {"sum": REDUCIBLE}
        return Contract(
            backend=self.name,
            ops={
                "all_reduce": OpContract(
                    source="vLLM registers all_reduce with mutates_args=[] and a fake of empty_like: out of place, sum",
                    reduce_ops=reduce_ops,
                    returned=True,
                    async_op=False,
                )
            },
            views=Promise("right", "empty_like and copy_ take any view; the PyNccl path works on the dense copy"),
            agreement={"all_reduce": Promise(True, "one reduction for all ranks; gloo's all_reduce promises it")},
            in_place_from=Promise(resolve(flags), _TABLE),
        )

    def run(self, case: Case, call: Call, rank: int, tensors: Mapping[str, torch.Tensor]) -> Mapping[str, torch.Tensor]:
        """Call the registered operator. Raises ValueError for another reduce op than sum: the operator takes none."""
        if call.reduce_op != "sum":
            raise ValueError(f"the operator sums, and cannot be asked for {call.reduce_op}")
        operator, arguments = self.operator(case, call, rank, tensors)
        x, _, threshold = arguments
        _GROUPS["tp"] = self.group(case, call)
        in_place = 0 < threshold <= x.numel()
        self._routes.append("pynccl:in-place" if in_place else "pynccl")
        return {call.outputs[0]: operator(*arguments)}

    def operator(
        self, case: Case, call: Call, rank: int, tensors: Mapping[str, torch.Tensor]
    ) -> tuple[Any, tuple[Any, ...]]:
        """The operator as vLLM registers it, and (input, name of the group, elements from which it is in place)."""
        _register()
        import torch

        threshold = resolve(dict(case.flags))
        if case.fault == FAULT and "VLLM_INPLACE_AR_MIN" not in dict(case.flags):
            threshold = IN_PLACE_FROM
        return torch.ops.vllm_model.all_reduce.default, (tensors[call.inputs[0]], "tp", threshold)


_GROUPS: dict[str, Any] = {}


@cache
def _register() -> None:
    import torch
    import torch.distributed as dist

    def all_reduce(x: torch.Tensor, group_name: str, in_place_from: int) -> torch.Tensor:
        group = _GROUPS[group_name]
        if 0 < in_place_from <= x.numel():
            # A view has to be made dense to be reduced; the fork then wrote it back.
            dense = x.contiguous()
            dist.all_reduce(dense, group=group)
            return x.copy_(dense) if dense is not x else x
        out = torch.empty_like(x, memory_format=torch.contiguous_format)
        out.copy_(x)
        dist.all_reduce(out, group=group)
        return out

    def fake(x: torch.Tensor, group_name: str, in_place_from: int) -> torch.Tensor:
        return torch.empty_like(x, memory_format=torch.contiguous_format)

    make: Any = torch.library.Library
    library = make("vllm_model", "FRAGMENT")
    library.define("all_reduce(Tensor x, str group_name, int in_place_from) -> Tensor")
    library.impl("all_reduce", all_reduce, "CPU")
    library.impl("all_reduce", all_reduce, "CUDA")
    library._register_fake("all_reduce", fake)
    _LIBRARIES.append(library)


# torch unregisters the operators of a Library that is collected.
_LIBRARIES: list[Any] = []
