"""What the scripts of all kinds of programs have in common: groups, calls, waits, and the lines that compare."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from corpus.case import LATE_SECONDS, WORLD, Call, Case
from corpus.meaning import region
from fuzz.repro.code import picked, view
from fuzz.repro.data import Data
from fuzz.repro.dialects import Dialect, Names
from fuzz.repro.expected import Argument
from fuzz.repro.tensors import Tensors

_RAISES = frozenset({"refused", "raised on some ranks"})
_LOCAL = {"copy": "{x}", "negate": "-{x}", "double": "{x} + {x}"}


class Program:
    """Lines of a script: `constants`, `makers` of tensors, the function `run`, and the `helpers` that it calls.

    `checks` says whether something is compared, `many` whether something has several legal results, and `bitwise`
    whether all that is compared is a copy. `timeout` is the seconds after which the library gives up (None: its own).
    `tells`: `run` calls `told`. `related`: sides of relations are compared, of which NaN is NaN and zeros have signs.
    """

    checks: bool
    many: bool = False
    bitwise: bool = False
    timeout: int | None = None
    tells: bool = False
    related: bool = False

    def __init__(
        self,
        case: Case,
        failures: Sequence[Mapping[str, Any]],
        dialect: Dialect,
        *,
        faithful: bool,
        apart: bool,
        only: list[int] | None = None,
    ) -> None:
        self.case = case
        self.dialect = dialect
        self.failures = failures
        self.constants: list[str] = []
        self.makers: list[str] = []
        self.run: list[str] = []
        self.helpers: list[str] = []
        self.tensors = Tensors(case, faithful=faithful, apart=apart)
        # The ranks that go on after the groups are made, where the others have nothing to do.
        self._only = only
        programs = dict.fromkeys(case.calls(rank) for rank in range(case.world.size))
        self._calls = [call for program in programs for call in program]
        self._works: dict[int, str] = {}
        self._splits()

    @property
    def data(self) -> Data:
        """What wrote the tensors' data."""
        return self.tensors.data

    def failing(self, *kinds: str) -> list[int]:
        """Indices of the calls that failed in one of these ways."""
        found = {max(int(failure["call"]), 0) for failure in self.failures if failure["kind"] in kinds}
        return sorted(index for index in found if index < len(self.case.program))

    def kinds(self, index: int) -> set[str]:
        """How a call failed."""
        return {str(failure["kind"]) for failure in self.failures if max(int(failure["call"]), 0) == index}

    def named(self, index: int, kind: str) -> set[str]:
        """Names of the tensors of a call that failed in a way; empty: none was named."""
        same = [f for f in self.failures if f["kind"] == kind and max(int(f["call"]), 0) == index]
        return {str(f["tensor"]) for f in same if f.get("tensor")}

    # Calls.

    def me(self, call: Call) -> str:
        """This rank's place in the call's group."""
        if self._only is not None:
            return "me"
        return "rank" if call.group == WORLD else f"{list(self.case.ranks(call))}.index(rank)"

    def group(self, call: Call) -> str:
        """The variable that holds a call's sub-group; "" for the world."""
        groups = list(dict.fromkeys(c.group for c in self._calls if c.group != WORLD))
        if call.group == WORLD:
            return ""
        return "group" if len(groups) == 1 else f"group_{groups.index(call.group)}"

    def groups(self) -> list[str]:
        """Lines that make the sub-groups, which every rank runs."""
        made = {self.group(call): list(self.case.ranks(call)) for call in self._calls if self.group(call)}
        return [line for name, ranks in made.items() for line in self.dialect.new_group(name, ranks)]

    def guarded(self, ranks: Sequence[int], lines: list[str]) -> list[str]:
        """Lines that only these ranks run."""
        if not lines or len(ranks) == self.case.world.size or self._only is not None:
            return lines
        return [f"if {among(ranks)}:", *indented(lines)]

    def call(self, index: int, call: Call, used: Sequence[str]) -> list[str]:
        """The lines that begin a call of the program, and wait for it unless that is due later.

        A result that the library returns is kept where a line of `used` asks for it.
        """
        if call.region is not None:
            # A region is written where its last call stands.
            together = region(self.case.program, index)
            return self._region(together) if together[-1] == index else []
        lines = self._local(call) if call.local else self._collective(index, call, used)
        if call.late is not None:
            lines = [f"if rank == {self.case.ranks(call)[call.late]}:", f"    time.sleep({LATE_SECONDS})", *lines]
        return self.guarded(self.case.ranks(call), lines)

    def _region(self, together: Sequence[int]) -> list[str]:
        calls = [self.case.program[index] for index in together]
        late = [self.case.ranks(call)[call.late] for call in calls if call.late is not None]
        lines = [line for rank in late for line in (f"if rank == {rank}:", f"    time.sleep({LATE_SECONDS})")]
        names = [self._names(call, self.tensors.argument(call, "outputs")) for call in calls]
        lines += self.dialect.region(self.case, calls, names)
        return self.guarded(self.case.ranks(calls[0]), lines)

    def _names(self, call: Call, outputs: Argument | None) -> Names:
        """What a call's arguments are called; `outputs` None: nobody asks for them."""
        return Names(
            inputs=self.tensors.argument(call, "inputs").variable if call.inputs else "",
            outputs=outputs.variable if outputs is not None else "",
            me=self.me(call),
            group=f", group={self.group(call)}" if self.group(call) else "",
        )

    def _local(self, call: Call) -> list[str]:
        x, y = (self.tensors.argument(call, place).variable for place in ("inputs", "outputs"))
        return [f"{y}.copy_({_LOCAL[call.op].format(x=x)})"]

    def _collective(self, index: int, call: Call, used: Sequence[str]) -> list[str]:
        outputs = self.tensors.argument(call, "outputs") if call.outputs else None
        if outputs is not None and self.tensors.is_returned(outputs):
            asked = any(re.search(rf"\b{re.escape(outputs.variable)}\b", line) for line in used)
            outputs = outputs if asked else None
        lines = self.with_splits(call, self.dialect.call(self.case, call, self._names(call, outputs)))
        if call.wait is None or not any(line.endswith(".wait()") for line in lines):
            return lines
        if index not in self._works:
            several = sum(other.wait is not None for other in self.case.program) > 1
            self._works[index] = self.tensors.fresh(f"work_{index}" if several else "pending")
        return [_kept(line, self._works[index]) for line in lines]

    def waits(self, program: Sequence[Call], index: int) -> list[str]:
        """Lines that wait for what is due after a call was begun, the newest first."""
        lines = []
        for pending in range(index, -1, -1):
            call = program[pending]
            if call.wait == index and pending in self._works:
                ranks = self.case.ranks(call)
                if call.op == "send_recv":
                    ranks = tuple(sorted({ranks[call.root or 0], ranks[call.peer or 0]}))
                lines += self.guarded(ranks, [f"{self._works[pending]}.wait()"])
        return lines

    def _splits(self) -> None:
        """Splits are constants: SPLITS, or SPLITS_1, ... where calls differ."""
        tables = list(dict.fromkeys(call.splits for call in self._calls if call.splits is not None))
        self._split_names = {t: "SPLITS" if len(tables) == 1 else f"SPLITS_{i}" for i, t in enumerate(tables)}
        for table, name in self._split_names.items():
            rows = ", ".join(str(list(row)) for row in table)
            self.constants.append(f"{name} = [{rows}]  # SPLITS[i][j] rows go from rank i of the group to rank j")

    def with_splits(self, call: Call, lines: list[str]) -> list[str]:
        """The lines with the call's own splits."""
        name = self._split_names.get(call.splits, "SPLITS") if call.splits is not None else "SPLITS"
        return [re.sub(r"\bSPLITS\b", name, line) for line in lines]

    def caught(self, calls: list[str]) -> list[str]:
        """The calls as one program; where it is their failure that they raise, with what reports that."""
        given = [line.partition(" = ")[0] for line in self.tensors.variables()]
        calls = self.dialect.program(self.case, calls, given)
        if not self.failing(*_RAISES):
            return calls
        return [
            "try:",
            *indented(calls),
            "except Exception as error:",
            '    print(f"rank {rank}: raised {type(error).__name__}: {error}", flush=True)',
            "    return True",
        ]

    # What is compared.

    def check(self, what: str, got: str, want: str) -> str:
        """A line that compares with the one legal result."""
        return f"wrong |= check(rank, {what}, {got}, {f'[{want}]' if self.many else want})"

    def described(self, name: str, variable: str) -> list[str]:
        """Lines that look at shape and dtype."""
        specs = {rank: self.case.tensor(name).on(rank) for rank in range(self.case.world.size)}
        shape = picked({rank: str(spec.shape) for rank, spec in specs.items()})
        return [
            f"if ({variable}.dtype, tuple({variable}.shape)) != (torch.{specs[0].dtype}, {shape}):",
            f'    print(f"rank {{rank}}: {variable} is a {{{variable}.dtype}} of shape {{tuple({variable}.shape)}}, '
            f'expected {specs[0].dtype} of {{{shape}}}", flush=True)',
            "    return True",
        ]

    def aliases(self, x: str, y: str) -> list[str]:
        """Lines that look whether two tensors share memory."""
        return [
            f"if {y}.untyped_storage().data_ptr() == {x}.untyped_storage().data_ptr():",
            f'    print(f"rank {{rank}}: {y} shares the memory of {x}", flush=True)',
            "    wrong = True",
        ]

    def agree(self, call: Call, outputs: Argument, variable: str = "") -> list[str]:
        """Lines that compare outputs with those of the group's first rank."""
        variable = variable or outputs.variable
        ranks = self.case.ranks(call)
        group = f", group={self.group(call)}" if self.group(call) else ""
        lines = [f"everyone = [None] * {len(ranks)}", f"dist.all_gather_object(everyone, {variable}{group})"]
        beside = f"beside that of rank {ranks[0]}"
        if outputs.is_list:
            lines.append(f"for i, (got, want) in enumerate(zip({variable}, everyone[0])):")
            return [*lines, "    " + self.check(f'f"{outputs.variable}[{{i}}] {beside}"', "got", "want")]
        return [*lines, self.check(f'"{outputs.variable} {beside}"', variable, "everyone[0]")]

    def has_base(self, argument: Argument) -> bool:
        """Whether some rank's tensor is a view."""
        return any(
            view(self.case.tensor(name).on(rank)).suffix or self.case.tensor(name).on(rank).layout.neg
            for name in argument.names
            for rank in range(self.case.world.size)
        )

    def around(self, argument: Argument, want: str | None) -> list[str]:
        """The whole base storage, which is as it was but for what the view holds (`want`; None: what it holds now)."""
        everywhere = all(
            view(self.case.tensor(name).on(rank)).suffix
            for name in argument.names
            for rank in range(self.case.world.size)
        )
        name = argument.variable
        if argument.is_list:
            now = "fresh.copy_(got)._base" if want is None else "fresh._base"
            check = self.check(f'f"the memory around {name}[{{i}}]"', "got._base", now)
            lines = [f"for i, (got, fresh) in enumerate(zip({name}, {argument.of('rank')})):"]
            return [*lines, *indented([check] if everywhere else ["if got._base is not None:", f"    {check}"])]
        fresh = f"{argument.of('rank')}.copy_({name})" if want is None else want
        check = self.check(f'"the memory around {name}"', f"{name}._base", f"{fresh}._base")
        return [check] if everywhere else [f"if {name}._base is not None:", f"    {check}"]


def _kept(line: str, work: str) -> str:
    """The line with its work kept instead of waited for."""
    if not line.endswith(".wait()"):
        return line
    text = line.lstrip()
    return f"{line[: len(line) - len(text)]}{work} = {text.removesuffix('.wait()')}"


def among(ranks: Sequence[int]) -> str:
    """The condition that a rank is one of these."""
    return f"rank == {ranks[0]}" if len(ranks) == 1 else f"rank in {list(ranks)}"


def indented(lines: Sequence[str]) -> list[str]:
    """Lines of a block."""
    return [f"    {line}" for line in lines]


def concluded(checks: list[str]) -> list[str]:
    """The checks, and what `run` returns: without the variable `wrong` where there is one check only."""
    count = sum("wrong " in line for line in checks)
    if not count:
        return [*checks, "return False"]
    if count == 1 and len(checks) == 1 and checks[0].startswith("wrong |= "):
        return [f"return {checks[0].removeprefix('wrong |= ')}"]
    if count == 1 and len(checks) == 2 and checks[0].startswith("if "):
        condition, check = checks[0][3:-1], checks[1].strip().removeprefix("wrong |= ")
        return [f"return {condition} and {check}"]
    first = next(index for index, line in enumerate(checks) if "wrong " in line)
    if checks[first].startswith("wrong |= "):
        return [*checks[:first], checks[first].replace("|=", "=", 1), *checks[first + 1 :], "return wrong"]
    return ["wrong = False", *checks, "return wrong"]
