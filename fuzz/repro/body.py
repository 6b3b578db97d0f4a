"""The script of a program whose calls are independent: what is checked after the last one."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from corpus.case import WORLD, Call, Case
from corpus.meaning import holders
from fuzz.repro.dialects import Dialect
from fuzz.repro.expected import Argument, Expected, expected
from fuzz.repro.program import Program, concluded, indented
from fuzz.repro.related import related


class Body(Program):
    """A program of calls over tensors that no other call has written, or overwrites."""

    def __init__(self, case: Case, failures: Sequence[Mapping[str, Any]], dialect: Dialect, *, faithful: bool) -> None:
        groups = {call.group for call in case.program}
        only = None if len(groups) > 1 or WORLD in groups else list(case.ranks(case.program[0]))
        super().__init__(case, failures, dialect, faithful=faithful, apart=False, only=only)
        self._expected = [self._expect(call) for call in case.program]
        wanted = [self._expected[index] for index in self.failing("wrong result")]
        self.many = any(one is not None and one.many for one in wanted)
        sides = related(self)
        moved = all(case.program[index].reduce_op is None for index in self.failing("wrong result"))
        self.bitwise, self.related = moved and not sides, bool(sides)
        checks = [self.guarded(case.ranks(call), self._checks(index, call)) for index, call in enumerate(case.program)]
        lines = [line for check in (*checks, sides) for line in check]
        self.checks = any("check(" in line for line in lines)
        self.helpers = [line for one in wanted if one is not None for line in one.helper.splitlines()]
        self.makers = self.tensors.makers(lines)
        self.run = self._run(lines)

    def _expect(self, call: Call) -> Expected | None:
        if not call.outputs:
            return None
        inputs, outputs = (self.tensors.argument(call, place) for place in ("inputs", "outputs"))
        return expected(self.case, call, inputs, outputs, self.me(call))

    def _checks(self, index: int, call: Call) -> list[str]:
        lines: list[str] = []
        if not call.outputs:
            return lines
        kinds = self.kinds(index)
        inputs, outputs = self.tensors.argument(call, "inputs"), self.tensors.argument(call, "outputs")
        if kinds & {"wrong shape", "wrong dtype"}:
            lines += self.described(outputs.names[0], outputs.variable)
        lines += self._results(index, call, inputs, outputs, kinds)
        if "input changed" in kinds and inputs.names != outputs.names:
            lines += self._unchanged(inputs, f"the input {inputs.variable}")
        if "buffer changed" in kinds and call.root is not None:
            others = self._unchanged(outputs, f"{outputs.variable} of a rank that is not the root")
            lines += [f"if rank != {self.case.ranks(call)[call.root]}:", *(f"    {line}" for line in others)]
        if "output aliases input" in kinds:
            lines += self.aliases(inputs.variable, outputs.variable)
        if "ranks disagree" in kinds:
            lines += self.agree(call, outputs)
        return self.with_splits(call, lines)

    def _results(self, index: int, call: Call, inputs: Argument, outputs: Argument, kinds: set[str]) -> list[str]:
        """The outputs, and the memory around outputs and inputs."""
        want = self._expected[index]
        assert want is not None
        named = self.named(index, "neighbours changed")
        around = [
            argument
            for argument in dict.fromkeys((outputs, inputs))
            if "neighbours changed" in kinds and self.has_base(argument) and (not named or named & set(argument.names))
        ]
        result = "wrong result" in kinds
        together = outputs in around and not (want.many or want.is_list or want.where) and want.got == outputs.variable
        lines = []
        if together and result:
            lines.append(f"want = {outputs.of('rank')}.copy_({want.value})")
            lines.append(self.check(f'"{outputs.variable}"', outputs.variable, "want"))
            lines += self.around(outputs, "want")
            around.remove(outputs)
        elif result:
            lines += self._result(outputs, want)
        for argument in around:
            mine = argument.names == call.outputs and not any(
                self.case.tensor(name).on(rank).overlaps for name in argument.names for rank in holders(self.case, name)
            )
            lines += self.around(argument, None if mine else argument.of("rank"))
        return lines

    def _result(self, outputs: Argument, want: Expected) -> list[str]:
        if want.is_list:
            lines = [
                f"for i, (got, want) in enumerate(zip({want.got}, {want.value})):",
                "    " + self.check(f'f"{outputs.variable}[{{i}}]"', "got", "want"),
            ]
        elif want.many:
            lines = [f'wrong |= check(rank, "{outputs.variable}", {want.got}, {want.value})']
        else:
            lines = [self.check(f'"{outputs.variable}"', want.got, want.value)]
        return [f"if {want.where}:", *(f"    {line}" for line in lines)] if want.where else lines

    def _unchanged(self, argument: Argument, what: str) -> list[str]:
        if argument.is_list:
            check = self.check(f'f"{argument.variable}[{{i}}]"', "got", "want")
            pairs = f"zip({argument.variable}, {argument.of('rank')})"
            return [f"for i, (got, want) in enumerate({pairs}):", f"    {check}"]
        return [self.check(f'"{what}"', argument.variable, argument.of("rank"))]

    def _run(self, checks: list[str]) -> list[str]:
        calls = [line for index, call in enumerate(self.case.program) for line in self.call(index, call, checks)]
        lines = self.groups()
        if self._only is not None:
            lines += [f"if rank not in {self._only}:", "    return False"]
            if any(re.search(r"\bme\b", line) for line in (*calls, *checks)):
                lines.append(f"me = {self._only}.index(rank)")
        lines += [*self.tensors.variables(), *self.caught(calls), *concluded(checks)]
        return ["def run(rank):", *indented(lines)]
