"""Scripts of DTensor's changes of placement, run for real: a right call, and the live bug of meshes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from repro_cases import failure
from running import Forked

from corpus.case import Call, Case, Group, Tensor, TensorSpec, World
from fuzz.repro.code import ReproError
from fuzz.repro.script import script

ROWS = {
    "all_reduce": (4, 4),
    "all_gather_into_tensor": (1, 4),
    "reduce_scatter_tensor": (4, 1),
    "all_to_all_single": (4, 4),
}
"""Rows of input and output on four ranks."""


def one_call(op: str, *flags: tuple[str, str], ranks: tuple[int, ...], world: int = 4, async_op: bool = False) -> Case:
    given, taken = ROWS[op]
    reduce_op = "sum" if op in ("all_reduce", "reduce_scatter_tensor") else None
    tensors = (Tensor("x", TensorSpec((given, 2))), Tensor("out", TensorSpec((taken, 2), payload=None)))
    call = Call(op, ("x",), ("out",), "part", reduce_op, async_op=async_op)
    return Case("dtensor", World(world, (Group("part", ranks),)), tensors, (call,), flags)


@pytest.mark.parametrize("async_op", [False, True])
@pytest.mark.parametrize("flags", [(), (("mesh", "2d"), ("through", "Shard(-1)"))])
@pytest.mark.parametrize("op", ROWS)
def test_a_right_call(
    tmp_path: Path, forked: Forked, op: str, flags: tuple[tuple[str, str], ...], async_op: bool
) -> None:
    case = one_call(op, *flags, ranks=(0, 1, 2, 3), async_op=async_op)
    done = forked(
        tmp_path, script(case, [failure(kind, op=op) for kind in ("wrong result", "input changed")], title="")
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "is right" in done.stdout


def test_a_mesh_of_ranks_loses_their_order(tmp_path: Path, forked: Forked) -> None:
    case = one_call("all_gather_into_tensor", ("mesh", "1d"), ranks=(3, 0, 2, 1))
    done = forked(tmp_path, script(case, [failure("wrong result", op="all_gather_into_tensor")], title="order"))
    assert done.returncode == 1, done.stdout + done.stderr
    assert "out_2 is wrong" in done.stdout


def test_a_mesh_of_some_ranks_is_refused() -> None:
    case = one_call("all_reduce", ("mesh", "1d"), ranks=(0, 1, 2, 3), world=5)
    with pytest.raises(ReproError, match="DeviceMesh of some ranks"):
        script(case, [failure("wrong result")], title="refused")
    script(replace(case, flags=()), [failure("wrong result")], title="written")
