"""How a change of placement of torch's DTensor is written in a script."""

from __future__ import annotations

import json

from corpus.case import WORLD, Call, Case
from fuzz.backends.dtensor import mesh_shape, placements, rows
from fuzz.repro.code import ReproError
from fuzz.repro.dialects import Dialect, Names


class DTensor(Dialect):
    """One expression a call. A result of an asynchronous call waits for itself where it is used."""

    def __init__(self) -> None:
        super().__init__("gloo", "DTensor over gloo")

    def imports(self, case: Case) -> tuple[str, ...]:
        """DTensor, its meshes and placements."""
        return (
            "from torch.distributed.device_mesh import DeviceMesh",
            "from torch.distributed.tensor import DTensor, Partial, Replicate, Shard",
        )

    def setup(self, case: Case) -> list[str]:
        """One variable, as the first DTensor loads the compiler and its cache; the flags stand in the calls."""
        return ['os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", tempfile.gettempdir())  # or torch leaves a folder']

    def call(self, case: Case, call: Call, names: Names) -> list[str]:
        """`y = DTensor.from_local(x, ...).redistribute(...).to_local()`, or only the call where nothing is asked of y.

        Raises:
            ReproError: only the ranks of a sub-group make the call, but every rank has to make its mesh.
        """
        ranks, shape = case.ranks(call), mesh_shape(case, call)
        group = "dist.group.WORLD" if call.group == WORLD else names.group.removeprefix(", group=")
        if shape is None:
            mesh = f'DeviceMesh.from_group({group}, "cpu")'
        elif len(ranks) < case.world.size:
            raise ReproError("this version writes no DeviceMesh of some ranks")
        else:
            mesh = f'DeviceMesh("cpu", {list(ranks) if shape == "1d" else rows(ranks)})'
        through = dict(case.flags).get("through") if case.tensor(call.inputs[0]).on(ranks[0]).shape else None
        way = [f"{name}({', '.join(map(json.dumps, arguments))})" for name, arguments in placements(call, through)]
        first, *rest = [f"[{placement}, {placement}]" if shape == "2d" else f"[{placement}]" for placement in way]
        before, after = (".unsqueeze(0)", ".flatten(0, 1)") if call.op == "all_to_all_single" else ("", "")
        how = ", async_op=True" if call.async_op else ""
        moved = "".join(f".redistribute(placements={placement}{how})" for placement in rest)
        keep = f"{names.outputs} = " if names.outputs else ""
        return [f"{keep}DTensor.from_local({names.inputs}{before}, {mesh}, {first}){moved}.to_local(){after}"]
