"""Functional collectives in a script, call by call or as one compiled program."""

from __future__ import annotations

import re

from corpus.case import WORLD, Call, Case
from fuzz.repro.code import ReproError
from fuzz.repro.dialects import Dialect, Names


class Functional(Dialect):
    """torch.distributed._functional_collectives over gloo."""

    modes = ("eager", "compiled")

    def __init__(self) -> None:
        super().__init__("gloo", "functional collectives over gloo")

    def imports(self, case: Case) -> tuple[str, ...]:
        """The module that has them."""
        return ("import torch.distributed._functional_collectives as funcol",)

    def call(self, case: Case, call: Call, names: Names) -> list[str]:
        """`y = funcol.all_reduce(x, ...)`: whoever reads the result waits for it."""
        group = "dist.group.WORLD" if call.group == WORLD else names.group.removeprefix(", group=")
        arguments = {
            "all_reduce": f'all_reduce({names.inputs}, "{call.reduce_op}"',
            "broadcast": f"broadcast({names.inputs}, {call.root}",
            "all_gather_into_tensor": f"all_gather_tensor({names.inputs}, 0",
            "reduce_scatter_tensor": f'reduce_scatter_tensor({names.inputs}, "{call.reduce_op}", 0',
            "all_to_all_single": f"all_to_all_single({names.inputs}, {_splits(call, names.me)}",
        }
        result = f"funcol.{arguments[call.op]}, {group})"
        if call.wait is None:
            result = f"funcol.wait_tensor({result})"
        return [f"{names.outputs} = {result}" if names.outputs else result]

    def program(self, case: Case, calls: list[str], given: list[str]) -> list[str]:
        """The calls, compiled where the case is.

        Raises:
            ReproError: some ranks are not in every call.
        """
        if case.mode == "eager":
            return calls
        if any(line.startswith(" ") for line in calls):
            raise ReproError("this version compiles no program that has calls of some ranks")
        results = ", ".join(dict.fromkeys(found[1] for line in calls if (found := re.match(r"(\w+) = ", line))))
        return [
            "@torch.compile(fullgraph=True, dynamic=True)",
            f"def program({', '.join(given)}):",
            *(f"    {line}" for line in [*calls, f"return {results}"]),
            f"{results + ' = ' if results else ''}program({', '.join(given)})",
        ]


def _splits(call: Call, me: str) -> str:
    return "None, None" if call.splits is None else f"[row[{me}] for row in SPLITS], SPLITS[{me}]"
