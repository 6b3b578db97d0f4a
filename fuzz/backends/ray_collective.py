"""ray.util.collective over its gloo backend, which is Python above torch.distributed.

A rank here is no Ray worker, only a process that says so, and that has joined a process group already. Ray's groups
then take that one ("Initialize the default process group only once per process", torch_gloo_collective_group.py). So
the way in which Ray's workers find each other is not under test; everything between a call and torch.distributed is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from corpus.case import WORLD, Call, Case
from corpus.contract import Contract, OpContract, Promise
from fuzz.backends.base import Place
from fuzz.backends.c10d import C10d
from fuzz.backends.gloo import CONTRACT as GLOO

if TYPE_CHECKING:
    import torch

Tensors = Mapping[str, "torch.Tensor"]

_GROUP = "default"
"""Ray's name for the group that the functions take without a name: here, of all ranks."""


class RayCollective(C10d):
    """ray.util.collective over gloo on a CPU."""

    name = "ray"
    summary = "ray.util.collective over its gloo backend, on CPUs"
    process_group = "gloo"

    def __init__(self) -> None:
        super().__init__()
        self._collective: Any = None
        self._names: set[str] = set()

    def contract(self, flags: Mapping[str, str]) -> Contract:
        """What Ray's documentation and docstrings say."""
        return CONTRACT

    def unavailable(self) -> str | None:
        """Ray is always here for our own use; its collectives were moved before."""
        return None if find_spec("ray.util.collective") else "this Ray has no ray.util.collective"

    def open(self, place: Place) -> None:
        """Join the default process group, and Ray's group of all ranks."""
        super().open(place)
        # By name, as nothing else that runs here may import Ray. In this backend it is the library under test.
        ray: Any = import_module("ray")
        self._collective = import_module("ray.util.collective.collective")
        import_module("ray._private.worker").global_worker.set_mode(ray.WORKER_MODE)
        self._collective.init_collective_group(place.size, place.rank, "gloo", _GROUP)

    def prepare(self, case: Case) -> None:
        """Have the members of each sub-group make it, in the same order; it is kept for other cases."""
        import torch.distributed as dist

        rank = dist.get_rank()
        for group in case.world.groups:
            name = _name(case, group.name)
            if rank in group.ranks and name not in self._names:
                self._names.add(name)
                self._collective.init_collective_group(len(group.ranks), group.ranks.index(rank), "gloo", name)

    def begin(self, case: Case, call: Call, rank: int, tensors: Tensors) -> Callable[[], Tensors]:
        """Run the call: all of Ray's are blocking."""
        me = case.ranks(call).index(rank)
        self._routes.append(f"ray:{call.op}")
        _CALLS[call.op](self._collective, call, me, tensors, _name(case, call.group))
        return dict

    def versions(self) -> tuple[tuple[str, str], ...]:
        """The versions of Ray and of torch."""
        return (("ray", str(import_module("ray").__version__)), *super().versions())


def _name(case: Case, group: str) -> str:
    """Ray's name of a group: the same for the same ranks, and for the same one of several groups of them."""
    if group == WORLD:
        return _GROUP
    ranks = case.world.ranks(group)
    twins = [each.name for each in case.world.groups if each.ranks == ranks]
    return f"{'-'.join(map(str, ranks))}.{twins.index(group)}"


def _op(collective: Any, call: Call) -> Any:
    return getattr(collective.types.ReduceOp, str(call.reduce_op).upper())


def _all_reduce(collective: Any, call: Call, me: int, tensors: Tensors, group: str) -> None:
    collective.allreduce(tensors[call.inputs[0]], group, _op(collective, call))


def _broadcast(collective: Any, call: Call, me: int, tensors: Tensors, group: str) -> None:
    collective.broadcast(tensors[call.inputs[0]], call.root, group)


def _reduce(collective: Any, call: Call, me: int, tensors: Tensors, group: str) -> None:
    collective.reduce(tensors[call.inputs[0]], call.root, group, _op(collective, call))


def _all_gather(collective: Any, call: Call, me: int, tensors: Tensors, group: str) -> None:
    collective.allgather([tensors[name] for name in call.outputs], tensors[call.inputs[0]], group)


def _reduce_scatter(collective: Any, call: Call, me: int, tensors: Tensors, group: str) -> None:
    inputs = [tensors[name] for name in call.inputs]
    collective.reducescatter(tensors[call.outputs[0]], inputs, group, _op(collective, call))


def _send_recv(collective: Any, call: Call, me: int, tensors: Tensors, group: str) -> None:
    if me == call.root:
        collective.send(tensors[call.inputs[0]], call.peer, group)
    elif me == call.peer:
        collective.recv(tensors[call.outputs[0]], call.root, group)


def _barrier(collective: Any, call: Call, me: int, tensors: Tensors, group: str) -> None:
    collective.barrier(group)


_CALLS: Mapping[str, Callable[[Any, Call, int, Tensors, str], None]] = {
    "all_reduce": _all_reduce,
    "broadcast": _broadcast,
    "reduce": _reduce,
    "all_gather": _all_gather,
    "reduce_scatter": _reduce_scatter,
    "send_recv": _send_recv,
    "barrier": _barrier,
}


def _docstring(function: str, quote: str) -> str:
    return f'ray 2.60 docstring of ray.util.collective.{function}: "{quote}"'


_PAGE = "Ray documentation, Ray Collective Communication Lib"
_MATRIX = f"{_PAGE}, support matrix: gloo has it on CPUs. Of dtypes nothing is said: those of torch's gloo"
_OPS = ("sum", "product", "min", "max")
"""ray.util.collective.types.ReduceOp."""
_REDUCE_OPS = {name: GLOO.ops["all_reduce"].reduce_ops[name] for name in _OPS}

CONTRACT = Contract(
    backend="ray",
    ops={
        "all_reduce": OpContract(
            source=_docstring("allreduce", "Collective allreduce the tensor across the group."),
            reduce_ops=_REDUCE_OPS,
            in_place=True,
            async_op=False,
        ),
        "broadcast": OpContract(
            source=_docstring("broadcast", "the tensor to be broadcasted (src) or received (destination)"),
            dtypes=GLOO.ops["broadcast"].dtypes,
            in_place=True,
            async_op=False,
        ),
        "reduce": OpContract(
            source=_docstring("reduce", "Reduce the tensor across the group to the destination rank."),
            reduce_ops=_REDUCE_OPS,
            in_place=True,
            async_op=False,
        ),
        "all_gather": OpContract(
            source=_docstring("allgather", "Allgather tensors from each process of the group into a list."),
            dtypes=GLOO.ops["all_gather"].dtypes,
            async_op=False,
        ),
        "reduce_scatter": OpContract(
            source=_docstring(
                "reducescatter",
                "Reduce the list of the tensors across each process in the group, then scatter the reduced list of "
                "tensors -- one tensor for each process. ... tensor: the resulted tensor on this process. tensor_list: "
                "The list of tensors to be reduced and scattered.",
            ),
            reduce_ops=_REDUCE_OPS,
            async_op=False,
        ),
        "send_recv": OpContract(
            source=_docstring("send", "Send a tensor to a remote process synchronously."),
            dtypes=GLOO.ops["send_recv"].dtypes,
            async_op=False,
            min_world=2,
        ),
        "barrier": OpContract(
            source=_docstring("barrier", "Barrier all processes in the collective group."), async_op=False
        ),
    },
    views=Promise("right or refused", f"{_MATRIX}; nothing is said of layouts, so a view works or has to be refused"),
    nan_extremum=GLOO.nan_extremum,
    reduce_others=Promise(
        "unchanged",
        "ray 2.60 torch_gloo_collective_group.py, reduce: \"Avoid mutating non-root ranks' user tensors to match "
        'util.collective semantics."',
    ),
    permuted_groups=Promise(
        True,
        'ray 2.60 docstring of ray.util.collective.create_collective_group: "ranks: the rank of each actor"; it takes '
        "any permutation",
    ),
)
"""Groups of some ranks are promised too: "for the same set of actors/task processes, multiple collective groups can be
constructed ... This enables specifying complex communication patterns between different (sub)set of processes." (its
page)
"""
