"""Ranks of a group that are taken for ranks of the world, or in another order."""

from __future__ import annotations

from dataclasses import replace

from corpus.case import OPS, WORLD, Case, Group
from fuzz.faults.base import Fault, Tensors, Turn, flat, put


class GatherMisordered(Fault):
    """all_gather returns the ranks in another order from three ranks on (nccl#1906)."""

    name = "gather-misordered"
    summary = "all_gather_into_tensor over three ranks or more swaps the last two"
    ops = ("all_gather_into_tensor",)

    def run(self, turn: Turn) -> Tensors:
        """Swap the last two parts."""
        returned = turn.right()
        out = turn.output(returned)
        if turn.size >= 3 and out.numel():
            parts = flat(out).reshape(turn.size, -1)
            put(out, parts[[*range(turn.size - 2), turn.size - 1, turn.size - 2]])
        return returned


class PermutedGather(Fault):
    """all_gather over permuted devices comes out in another order (nccl#1906)."""

    name = "permuted-gather"
    summary = "all_gather_into_tensor over a group that is not in the order of the world comes out backwards"
    ops = ("all_gather_into_tensor",)

    def run(self, turn: Turn) -> Tensors:
        """Turn the parts round."""
        returned = turn.right()
        out = turn.output(returned)
        if list(turn.ranks) != sorted(turn.ranks) and out.numel():
            put(out, flat(out).reshape(turn.size, -1).flip(0))
        return returned


class GroupRootAsGlobal(Fault):
    """The root's rank in the group is taken for its rank in the world (pytorch#74602, pytorch#149200)."""

    name = "group-root-as-global"
    summary = "broadcast in a sub-group takes the root for a rank of the world, where the group has that one"
    ops = ("broadcast",)

    def run(self, turn: Turn) -> Tensors:
        """Send from the other one."""
        root = turn.call.root
        return turn.right(replace(turn.call, root=turn.ranks.index(root)) if root in turn.ranks else None)


class GlobalRootAsGroup(Fault):
    """The leader's rank in the world is taken for its rank in the group (flashinfer#3418)."""

    name = "global-root-as-group"
    summary = "broadcast in a sub-group takes the root's rank in the world for its rank in the group"
    ops = ("broadcast",)

    def run(self, turn: Turn) -> Tensors:
        """Send from the other one."""
        assert turn.call.root is not None
        root = turn.ranks[turn.call.root]
        return turn.right(replace(turn.call, root=root) if root < turn.size else None)


class SortedGroup(Fault):
    """A group's ranks are silently sorted (pytorch#176126)."""

    name = "sorted-group"
    summary = "sub-groups have their ranks in the order of the world, whatever order was asked for"
    ops = OPS

    def seen(self, case: Case) -> Case:
        """With sorted groups."""
        groups = tuple(Group(group.name, tuple(sorted(group.ranks))) for group in case.world.groups)
        return replace(case, world=replace(case.world, groups=groups))

    def run(self, turn: Turn) -> Tensors:
        """Run it in the sorted group."""
        return turn.right()


class GroupsAsBlocks(Fault):
    """The groups [[0, 2], [1, 3]] are taken for [[0, 1], [2, 3]] (jax#5861)."""

    name = "groups-as-blocks"
    summary = "groups of one size that share out the world are taken for blocks of neighbouring ranks"
    ops = OPS

    def seen(self, case: Case) -> Case:
        """With blocks of neighbours."""
        groups = case.world.groups
        shared_out = sorted(rank for group in groups for rank in group.ranks) == list(range(case.world.size))
        if not shared_out or len({len(group.ranks) for group in groups}) > 1:
            return case
        size = len(groups[0].ranks)
        blocks = tuple(
            Group(group.name, tuple(range(place * size, (place + 1) * size))) for place, group in enumerate(groups)
        )
        return replace(case, world=replace(case.world, groups=blocks))

    def run(self, turn: Turn) -> Tensors:
        """Run it in the block that holds this rank."""
        if turn.call.group == WORLD or turn.rank in turn.ranks:
            return turn.right()
        block = next(group for group in turn.case.world.groups if turn.rank in group.ranks)
        return turn.right(replace(turn.call, group=block.name))


FAULTS: tuple[type[Fault], ...] = (
    GatherMisordered,
    PermutedGather,
    GroupRootAsGlobal,
    GlobalRootAsGroup,
    SortedGroup,
    GroupsAsBlocks,
)
