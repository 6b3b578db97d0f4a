"""torch's DTensor over gloo: collectives that nobody calls, but that a change of placement amounts to.

`redistribute` documents which collective each change is. A call is run as the change that means the same, on a mesh of
the call's group; flags choose how the mesh is made, and a placement to stop at on the way. Left out, as the corpus has
no word for them: a Replicate that is sharded, which is no communication, and what moves shards of unequal sizes as
such. Those are met on the way through a Shard, which splits any size.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from corpus.case import WORLD, Call, Case
from corpus.contract import Contract, OpContract, Promise
from corpus.flags import Flag, Scope
from fuzz.backends.base import Place
from fuzz.backends.c10d import C10d
from fuzz.backends.gloo import CONTRACT as GLOO
from fuzz.backends.gloo import Gloo

if TYPE_CHECKING:
    import torch

Tensors = Mapping[str, "torch.Tensor"]


class DTensor(C10d):
    """torch.distributed.tensor.DTensor.redistribute over gloo."""

    name = "dtensor"
    summary = "torch's DTensor.redistribute over gloo, on meshes of one and of two dimensions"
    process_group = "gloo"
    thresholds = Gloo.thresholds
    flags = (
        Flag(
            "mesh",
            ("1d", "2d"),
            Scope.CALL,
            "torch 2.13 docstring of DeviceMesh: made of the group's ranks, in one dimension or in rows and columns; "
            "unset: DeviceMesh.from_group of the process group",
        ),
        Flag(
            "through",
            ("Shard(0)", "Shard(-1)"),
            Scope.CALL,
            "torch 2.13 docstring of Shard: a placement to stop at on the way, which 'follows the torch.chunk(dim) "
            "semantic', so that shards differ in size or are empty",
        ),
    )

    def __init__(self) -> None:
        super().__init__()
        # By ranks and the flag; for meshes of existing groups, by the group's name.
        self._meshes: dict[tuple[Any, str], Any] = {}

    def contract(self, flags: Mapping[str, str]) -> Contract:
        """The same promises on every mesh and way, but for agreement of ranks in two dimensions."""
        return MATRIX if flags.get("mesh") == "2d" else CONTRACT

    def open(self, place: Place) -> None:
        """Join the default process group."""
        # The first DTensor loads the compiler, which makes a folder for what it compiles: here, not one that stays.
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(Path.cwd() / "inductor")
        super().open(place)

    def prepare(self, case: Case) -> None:
        """Make the case's sub-groups, and its meshes: every rank makes every one."""
        super().prepare(case)
        shape = dict(case.flags).get("mesh")
        if shape is None:
            return
        from torch.distributed.device_mesh import DeviceMesh

        for group in (WORLD, *(group.name for group in case.world.groups)):
            ranks = case.world.ranks(group)
            if (ranks, shape) not in self._meshes:
                self._meshes[ranks, shape] = DeviceMesh("cpu", list(ranks) if shape == "1d" else rows(ranks))

    def mesh(self, case: Case, call: Call) -> Any:
        """The mesh of a call's group, on a rank of the group."""
        from torch.distributed.device_mesh import DeviceMesh

        shape = mesh_shape(case, call)
        if shape is not None:
            return self._meshes[case.ranks(call), shape]
        group = self.group(case, call)
        place = group.group_name, "from_group"
        if place not in self._meshes:
            self._meshes[place] = DeviceMesh.from_group(group, "cpu")
        return self._meshes[place]

    def begin(self, case: Case, call: Call, rank: int, tensors: Tensors) -> Callable[[], Tensors]:
        """Begin the call, and return what waits for its result."""
        import torch.distributed.tensor as library
        from torch.distributed._functional_collectives import AsyncCollectiveTensor

        x, mesh, across = tensors[call.inputs[0]], self.mesh(case, call), call.op == "all_to_all_single"
        way = placements(call, dict(case.flags).get("through") if x.ndim else None)
        first, *rest = [getattr(library, name)(*arguments) for name, arguments in way]
        # The row of a rank, in a matrix of the blocks that each rank sends to each.
        local = x.unsqueeze(0) if across else x
        moved = library.DTensor.from_local(local, mesh, [first] * mesh.ndim)
        for placement in rest:
            moved = moved.redistribute(placements=[placement] * mesh.ndim, async_op=call.async_op)
        result: Any = moved.to_local()
        self._routes.append(f"dtensor:{call.op}")

        def wait() -> Tensors:
            done = result.wait() if isinstance(result, AsyncCollectiveTensor) else result
            return {call.outputs[0]: done.flatten(0, 1) if across else done}

        return wait


def mesh_shape(case: Case, call: Call) -> str | None:
    """The flag's value for the mesh of a call; None: it is made from the process group.

    An average of averages rounds twice, for which the contract has no word: it stays in one dimension.
    """
    shape = dict(case.flags).get("mesh")
    return None if shape == "2d" and call.reduce_op == "avg" else shape


def rows(ranks: tuple[int, ...]) -> list[list[int]]:
    """The ranks in equal rows, as close to a square as their number allows, and no more rows than columns."""
    count = max(n for n in range(1, len(ranks) + 1) if len(ranks) % n == 0 and n * n <= len(ranks))
    width = len(ranks) // count
    return [list(ranks[row * width : (row + 1) * width]) for row in range(count)]


Placement = tuple[str, tuple[Any, ...]]
"""The name of a placement's class, and its arguments."""


def placements(call: Call, through: str | None) -> list[Placement]:
    """The placements of a call, from its input to its output; `through` is a value of the flag, or None."""
    partial, replicate, shard = ("Partial", (call.reduce_op,)), ("Replicate", ()), ("Shard", (0,))
    ends: dict[str, tuple[Placement, Placement]] = {
        "all_reduce": (partial, replicate),
        "all_gather_into_tensor": (shard, replicate),
        "reduce_scatter_tensor": (partial, shard),
        "all_to_all_single": (shard, ("Shard", (1,))),
    }
    first, last = ends[call.op]
    stops: dict[str | None, list[Placement]] = {None: [], "Shard(0)": [shard], "Shard(-1)": [("Shard", (-1,))]}
    return [first, *stops[through], last]


def _source(change: str) -> str:
    return (
        f'torch 2.13 docstring of DTensor.redistribute: "{change}"; its source (torch/distributed/tensor/_api.py): '
        '"only supports out of place redistribution, i.e. it always create a new DTensor object and leave the '
        'original one unchanged". A mesh of one rank hands the same memory on, which nothing forbids'
    )


CONTRACT = Contract(
    backend="dtensor",
    ops={
        "all_reduce": OpContract(
            source=_source("Partial() -> Replicate(): all_reduce"),
            reduce_ops=GLOO.ops["all_reduce"].reduce_ops,
            returned=True,
            min_world=2,
        ),
        "all_gather_into_tensor": OpContract(
            source=_source("Shard(dim) -> Replicate(): all_gather"),
            dtypes=GLOO.ops["all_gather_into_tensor"].dtypes,
            returned=True,
            min_world=2,
        ),
        "reduce_scatter_tensor": OpContract(
            source=_source("Partial() -> Shard(dim): reduce_scatter"),
            reduce_ops=GLOO.ops["reduce_scatter_tensor"].reduce_ops,
            returned=True,
            min_world=2,
        ),
        "all_to_all_single": OpContract(
            source=_source("Shard(src_dim) -> Shard(dst_dim): all_to_all"),
            # On CPUs it is an all_gather, of which each rank keeps its part (_collective_utils.shard_dim_alltoall).
            dtypes=GLOO.ops["all_gather_into_tensor"].dtypes,
            returned=True,
            min_world=2,
        ),
    },
    views=Promise(
        "right or refused",
        "torch 2.13 docstring of DTensor.from_local: a local torch.Tensor, of no layout; it works or has to be refused",
    ),
    agreement={
        "all_reduce": Promise(
            True, "torch 2.13 docstring of Replicate: 'each rank on the DeviceMesh dimension holds a replica'"
        )
    },
    average=GLOO.average,
    nan_extremum=GLOO.nan_extremum,
    permuted_groups=Promise(
        True,
        "torch 2.13 docstring of DeviceMesh: 'layout of devices could be represented as a n-d dimension array, and "
        "each value of the n-d dimensional array is the global id of the default process group ranks'",
    ),
)

MATRIX = replace(CONTRACT, agreement={})
"""The contract on a mesh of two dimensions: of several collectives in a row, torch 2.13 warns that they "may give
inconsistent results between ranks due to different reduction orders" (torch/distributed/tensor/_redistribute.py).
"""
