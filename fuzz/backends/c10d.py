"""torch.distributed's collectives over one of its process-group backends."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar

from corpus.case import WORLD, Call, Case
from corpus.meaning import split_matrix
from fuzz.backends.base import Backend, Place

if TYPE_CHECKING:
    import torch


class C10d(Backend):
    """Runs every call through the functions that a user of torch.distributed calls."""

    process_group: ClassVar[str]
    """The name that `init_process_group` is given."""

    def __init__(self) -> None:
        # By ranks, and by how many groups of the same ranks the case has before it.
        self._groups: dict[tuple[tuple[int, ...], int], Any] = {}
        self._routes: list[str] = []
        self._timeout = timedelta(minutes=30)

    def open(self, place: Place) -> None:
        """Join the default process group."""
        import torch
        import torch.distributed as dist

        # Newer versions rename two collectives and warn at each call of the names that older ones have.
        warnings.filterwarnings("ignore", category=FutureWarning, module="torch.distributed")
        # torch read the environment when it was imported, which was before the world's was set.
        vars(dist)["set_debug_level_from_env"]()
        if place.device is not None:
            torch.cuda.set_device(place.device)
        self._timeout = timedelta(seconds=place.timeout)
        dist.init_process_group(
            self.process_group,
            init_method=place.init_method,
            rank=place.rank,
            world_size=place.size,
            timeout=self._timeout,
        )

    def prepare(self, case: Case) -> None:
        """Make the case's sub-groups: every rank makes every group, in the same order, and keeps it for other cases."""
        import torch.distributed as dist

        for place in _places(case).values():
            if place not in self._groups:
                ranks = list(place[0])
                # By default new_group sorts; older versions always do.
                order: dict[str, Any] = {} if ranks == sorted(ranks) else {"sort_ranks": False}
                self._groups[place] = dist.new_group(ranks, timeout=self._timeout, **order)

    def group(self, case: Case, call: Call) -> Any:
        """The process group of a call."""
        import torch.distributed as dist

        return dist.group.WORLD if call.group == WORLD else self._groups[_places(case)[call.group]]

    def run(self, case: Case, call: Call, rank: int, tensors: Mapping[str, torch.Tensor]) -> Mapping[str, torch.Tensor]:
        """Run the call and wait for it; every output is the caller's, so nothing is returned."""
        return self.begin(case, call, rank, tensors)()

    def begin(
        self, case: Case, call: Call, rank: int, tensors: Mapping[str, torch.Tensor]
    ) -> Callable[[], Mapping[str, torch.Tensor]]:
        """Begin the call, and return what waits for its work, if it is asynchronous."""
        me = case.ranks(call).index(rank)
        work = _CALLS[call.op](case, call, me, tensors, self.group(case, call))
        self._routes.append(f"{self.process_group}:{call.op}")

        def wait() -> Mapping[str, torch.Tensor]:
            if call.async_op and work is not None:
                work.wait()
            return {}

        return wait

    def run_region(
        self, case: Case, calls: Sequence[Call], rank: int, tensors: Mapping[str, torch.Tensor]
    ) -> Mapping[str, torch.Tensor]:
        """Send and receive in one batch; coalesce other collectives. Every output is the caller's."""
        import torch.distributed as dist
        from torch.distributed.distributed_c10d import _coalescing_manager

        group, me = self.group(case, calls[0]), case.ranks(calls[0]).index(rank)
        self._routes += [f"{self.process_group}:{call.op} in a region" for call in calls]
        if calls[0].op == "send_recv":
            batch = [part for call in calls for part in _point_to_point(call, me, tensors, group)]
            for work in dist.batch_isend_irecv(batch) if batch else ():
                work.wait()
            return {}
        with _coalescing_manager(group, async_ops=calls[0].async_op) as works:
            for call in calls:
                _CALLS[call.op](case, replace(call, async_op=False), me, tensors, group)
        works.wait()
        return {}

    def routes(self) -> tuple[str, ...]:
        """Process-group backend and collective of each call."""
        taken, self._routes = tuple(self._routes), []
        return taken

    def versions(self) -> tuple[tuple[str, str], ...]:
        """The version of torch; gloo and NCCL are part of it, NCCL with a version of its own."""
        import torch

        found = [("torch", str(torch.__version__))]
        if self.process_group == "nccl":
            nccl: Any = torch.cuda.nccl
            found.append(("nccl", ".".join(str(part) for part in nccl.version())))
        return tuple(found)

    def close(self) -> None:
        """Destroy every process group."""
        import torch.distributed as dist

        if dist.is_initialized():
            dist.destroy_process_group()


Tensors = Mapping[str, "torch.Tensor"]


def _places(case: Case) -> dict[str, tuple[tuple[int, ...], int]]:
    """By name of a sub-group: its ranks, and how many groups of the same ranks come before it."""
    ranks = [group.ranks for group in case.world.groups]
    return {
        group.name: (group.ranks, ranks[:place].count(group.ranks)) for place, group in enumerate(case.world.groups)
    }


def reduce_op(call: Call) -> Any:
    """torch.distributed's name for the call's reduce op."""
    import torch.distributed as dist

    if call.reduce_op == "premul_sum":
        make: Any = vars(dist)["_make_nccl_premul_sum"]
        return make(call.factor)
    return getattr(dist.ReduceOp, str(call.reduce_op).upper())


def _pick(names: Sequence[str], tensors: Tensors) -> list[torch.Tensor]:
    return [tensors[name] for name in names]


def _all_reduce(case: Case, call: Call, me: int, tensors: Tensors, group: Any) -> Any:
    import torch.distributed as dist

    return dist.all_reduce(tensors[call.inputs[0]], op=reduce_op(call), group=group, async_op=call.async_op)


def _reduce(case: Case, call: Call, me: int, tensors: Tensors, group: Any) -> Any:
    import torch.distributed as dist

    x = tensors[call.inputs[0]]
    return dist.reduce(x, op=reduce_op(call), group=group, async_op=call.async_op, group_dst=call.root)


def _broadcast(case: Case, call: Call, me: int, tensors: Tensors, group: Any) -> Any:
    import torch.distributed as dist

    return dist.broadcast(tensors[call.inputs[0]], group=group, async_op=call.async_op, group_src=call.root)


def _all_gather(case: Case, call: Call, me: int, tensors: Tensors, group: Any) -> Any:
    import torch.distributed as dist

    outputs = _pick(call.outputs, tensors)
    return dist.all_gather(outputs, tensors[call.inputs[0]], group=group, async_op=call.async_op)


def _all_gather_into_tensor(case: Case, call: Call, me: int, tensors: Tensors, group: Any) -> Any:
    import torch.distributed as dist

    output, x = tensors[call.outputs[0]], tensors[call.inputs[0]]
    return dist.all_gather_into_tensor(output, x, group=group, async_op=call.async_op)


def _reduce_scatter(case: Case, call: Call, me: int, tensors: Tensors, group: Any) -> Any:
    import torch.distributed as dist

    output, inputs = tensors[call.outputs[0]], _pick(call.inputs, tensors)
    return dist.reduce_scatter(output, inputs, op=reduce_op(call), group=group, async_op=call.async_op)


def _reduce_scatter_tensor(case: Case, call: Call, me: int, tensors: Tensors, group: Any) -> Any:
    import torch.distributed as dist

    output, x = tensors[call.outputs[0]], tensors[call.inputs[0]]
    return dist.reduce_scatter_tensor(output, x, op=reduce_op(call), group=group, async_op=call.async_op)


def _gather(case: Case, call: Call, me: int, tensors: Tensors, group: Any) -> Any:
    import torch.distributed as dist

    outputs = _pick(call.outputs, tensors) if me == call.root else None
    x = tensors[call.inputs[0]]
    return dist.gather(x, outputs, group=group, async_op=call.async_op, group_dst=call.root)


def _scatter(case: Case, call: Call, me: int, tensors: Tensors, group: Any) -> Any:
    import torch.distributed as dist

    inputs = _pick(call.inputs, tensors) if me == call.root else None
    output = tensors[call.outputs[0]]
    return dist.scatter(output, inputs, group=group, async_op=call.async_op, group_src=call.root)


def _all_to_all_single(case: Case, call: Call, me: int, tensors: Tensors, group: Any) -> Any:
    import torch.distributed as dist

    output, x = tensors[call.outputs[0]], tensors[call.inputs[0]]
    sent = received = None
    if call.splits is not None:
        matrix = split_matrix(case, call)
        sent, received = list(matrix[me]), [row[me] for row in matrix]
    return dist.all_to_all_single(output, x, received, sent, group=group, async_op=call.async_op)


def _all_to_all(case: Case, call: Call, me: int, tensors: Tensors, group: Any) -> Any:
    import torch.distributed as dist

    outputs, inputs = _pick(call.outputs, tensors), _pick(call.inputs, tensors)
    return dist.all_to_all(outputs, inputs, group=group, async_op=call.async_op)


def _send_recv(case: Case, call: Call, me: int, tensors: Tensors, group: Any) -> Any:
    import torch.distributed as dist

    if me == call.root:
        send = dist.isend if call.async_op else dist.send
        return send(tensors[call.inputs[0]], group=group, group_dst=call.peer)
    if me == call.peer:
        # recv returns the sender's rank, irecv the work to wait for.
        receive = dist.irecv if call.async_op else dist.recv
        return receive(tensors[call.outputs[0]], group=group, group_src=call.root)
    return None


def _point_to_point(call: Call, me: int, tensors: Tensors, group: Any) -> list[Any]:
    """This rank's part in a send_recv, for a batch."""
    import torch.distributed as dist

    if me == call.root:
        return [dist.P2POp(dist.isend, tensors[call.inputs[0]], group=group, group_peer=call.peer)]
    if me == call.peer:
        return [dist.P2POp(dist.irecv, tensors[call.outputs[0]], group=group, group_peer=call.root)]
    return []


def _barrier(case: Case, call: Call, me: int, tensors: Tensors, group: Any) -> Any:
    import torch.distributed as dist

    return dist.barrier(group=group, async_op=call.async_op)


_CALLS: Mapping[str, Callable[[Case, Call, int, Tensors, Any], Any]] = {
    "all_reduce": _all_reduce,
    "reduce": _reduce,
    "broadcast": _broadcast,
    "all_gather": _all_gather,
    "all_gather_into_tensor": _all_gather_into_tensor,
    "reduce_scatter": _reduce_scatter,
    "reduce_scatter_tensor": _reduce_scatter_tensor,
    "gather": _gather,
    "scatter": _scatter,
    "all_to_all_single": _all_to_all_single,
    "all_to_all": _all_to_all,
    "send_recv": _send_recv,
    "barrier": _barrier,
}
