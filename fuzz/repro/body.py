"""The part of a script that is about the case: making the tensors, the calls, and what is checked afterwards."""

from __future__ import annotations

import builtins
import keyword
import re
from collections.abc import Mapping, Sequence
from typing import Any

from corpus.case import WORLD, Call, Case
from corpus.meaning import holders
from fuzz.repro.code import picked, view
from fuzz.repro.data import Data
from fuzz.repro.dialects import Dialect, Names
from fuzz.repro.expected import Argument, Expected, expected

_LISTS = {
    "inputs": frozenset({"reduce_scatter", "scatter", "all_to_all"}),
    "outputs": frozenset({"all_gather", "gather", "all_to_all"}),
}
_WORDS = """
Process all_reduce averages base bits check dist error everyone faulthandler fresh functools got group hashlib i inf key
itertools legal main me modulo nan numbers os products r rank repeat run shift signal sums sys tempfile torch traceback
want worker wrong
"""
_TAKEN = frozenset(_WORDS.split()) | frozenset(dir(builtins))
"""Names that a script uses itself."""
_RAISES = frozenset({"refused", "raised on some ranks"})


class Body:
    """Lines of a script: `constants`, `makers` of tensors, and the function `run`.

    `checks` says whether something is compared, `many` whether something has several legal results, and `bitwise`
    whether all that is compared is a copy.
    """

    def __init__(self, case: Case, failures: Sequence[Mapping[str, Any]], dialect: Dialect, *, faithful: bool) -> None:
        self.case = case
        self.dialect = dialect
        self.data = Data(case, faithful=faithful)
        self.constants: list[str] = []
        self._failures = failures
        groups = {call.group for call in case.program}
        self._only = None if len(groups) > 1 or WORLD in groups else list(case.ranks(case.program[0]))
        self._arguments: dict[tuple[tuple[str, ...], bool], Argument] = {}
        self._find_arguments()
        self._expected = [self._expect(index, call) for index, call in enumerate(case.program)]
        wanted = [self._expected[index] for index in self._failing("wrong result")]
        self.many = any(one is not None and one.many for one in wanted)
        self.bitwise = all(case.program[index].reduce_op is None for index in self._failing("wrong result"))
        self._splits()
        checks = [self._guarded(call, self._checks(index, call)) for index, call in enumerate(case.program)]
        lines = [line for check in checks for line in check]
        self.checks = any("check(" in line for line in lines)
        self.helpers = [line for one in wanted if one is not None for line in one.helper.splitlines()]
        self.makers, self._inline = self._make(lines)
        self.run = self._run(lines)

    def _failing(self, *kinds: str) -> list[int]:
        """Indices of the calls that failed in one of these ways."""
        found = {max(int(failure["call"]), 0) for failure in self._failures if failure["kind"] in kinds}
        return sorted(index for index in found if index < len(self.case.program))

    def _named(self, index: int, kind: str) -> set[str]:
        """Names of the tensors of a call that failed in a way; empty: none was named."""
        same = [f for f in self._failures if f["kind"] == kind and max(int(f["call"]), 0) == index]
        return {str(f["tensor"]) for f in same if f.get("tensor")}

    # The arguments of calls, and what they are called.

    def _find_arguments(self) -> None:
        for call in self.case.program:
            for names, place in ((call.inputs, "inputs"), (call.outputs, "outputs")):
                is_list = call.op in _LISTS[place]
                if names and (names, is_list) not in self._arguments:
                    variable = self._variable(place if is_list else names[0])
                    self._arguments[names, is_list] = Argument(names, variable, is_list)
        places = [(name, key) for key in self._arguments for name in key[0]]
        self._shared = {name for name, _ in places if sum(name == other for other, _ in places) > 1}
        for name in [n for n, key in places if key[1] and self._shared & set(key[0])]:
            if ((name,), False) not in self._arguments:
                self._arguments[(name,), False] = Argument((name,), self._variable(name), False)

    def _variable(self, name: str) -> str:
        base = re.sub(r"\W", "_", name)
        used = {argument.variable for argument in self._arguments.values()}
        candidate, count = base, 1
        while candidate in used or candidate in _TAKEN or keyword.iskeyword(candidate):
            count += 1
            candidate = f"{base}_{count}"
        return candidate

    def _argument(self, call: Call, place: str) -> Argument:
        names = call.inputs if place == "inputs" else call.outputs
        return self._arguments[names, call.op in _LISTS[place]]

    def _is_returned(self, argument: Argument) -> bool:
        return any(self.case.tensor(name).spec.payload is None for name in argument.names)

    def _expect(self, index: int, call: Call) -> Expected | None:
        if not call.outputs:
            return None
        outputs = self._argument(call, "outputs")
        return expected(self.case, call, self._argument(call, "inputs"), outputs, self._me(call))

    def _me(self, call: Call) -> str:
        if self._only is not None:
            return "me"
        return "rank" if call.group == WORLD else f"{list(self.case.ranks(call))}.index(rank)"

    def _group(self, call: Call) -> str:
        groups = list(dict.fromkeys(c.group for c in self.case.program if c.group != WORLD))
        if call.group == WORLD:
            return ""
        return "group" if len(groups) == 1 else f"group_{groups.index(call.group)}"

    def _guarded(self, call: Call, lines: list[str]) -> list[str]:
        """Lines that only the ranks of the call's group run."""
        ranks = self.case.ranks(call)
        if not lines or len(ranks) == self.case.world.size or self._only is not None:
            return lines
        return [f"if rank in {list(ranks)}:", *(f"    {line}" for line in lines)]

    def _splits(self) -> None:
        """Splits are constants: SPLITS, or SPLITS_1, ... where calls differ."""
        tables = list(dict.fromkeys(call.splits for call in self.case.program if call.splits is not None))
        self._split_names = {t: "SPLITS" if len(tables) == 1 else f"SPLITS_{i}" for i, t in enumerate(tables)}
        for table, name in self._split_names.items():
            rows = ", ".join(str(list(row)) for row in table)
            self.constants.append(f"{name} = [{rows}]  # SPLITS[i][j] rows go from rank i of the group to rank j")

    def _with_splits(self, call: Call, lines: list[str]) -> list[str]:
        name = self._split_names.get(call.splits, "SPLITS") if call.splits is not None else "SPLITS"
        return [re.sub(r"\bSPLITS\b", name, line) for line in lines]

    # What is checked.

    def _checks(self, index: int, call: Call) -> list[str]:
        lines: list[str] = []
        if not call.outputs:
            return lines
        kinds = {f["kind"] for f in self._failures if max(int(f["call"]), 0) == index}
        inputs, outputs = self._argument(call, "inputs"), self._argument(call, "outputs")
        if kinds & {"wrong shape", "wrong dtype"}:
            lines += self._described(outputs)
        lines += self._results(index, call, inputs, outputs, kinds)
        if "input changed" in kinds and inputs.names != outputs.names:
            lines += self._unchanged(inputs, f"the input {inputs.variable}")
        if "buffer changed" in kinds and call.root is not None:
            others = self._unchanged(outputs, f"{outputs.variable} of a rank that is not the root")
            lines += [f"if rank != {self.case.ranks(call)[call.root]}:", *(f"    {line}" for line in others)]
        if "output aliases input" in kinds:
            lines += self._aliases(inputs, outputs)
        if "ranks disagree" in kinds:
            lines += self._agree(call, outputs)
        return self._with_splits(call, lines)

    def _results(self, index: int, call: Call, inputs: Argument, outputs: Argument, kinds: set[str]) -> list[str]:
        """The outputs, and the memory around outputs and inputs."""
        want = self._expected[index]
        assert want is not None
        named = self._named(index, "neighbours changed")
        around = [
            argument
            for argument in dict.fromkeys((outputs, inputs))
            if "neighbours changed" in kinds and self._has_base(argument) and (not named or named & set(argument.names))
        ]
        result = "wrong result" in kinds
        together = outputs in around and not (want.many or want.is_list or want.where) and want.got == outputs.variable
        lines = []
        if together and result:
            lines.append(f"want = {outputs.of('rank')}.copy_({want.value})")
            lines.append(self._check(f'"{outputs.variable}"', outputs.variable, "want"))
            lines += self._around(outputs, "want")
            around.remove(outputs)
        elif result:
            lines += self._result(outputs, want)
        for argument in around:
            mine = argument.names == call.outputs and not any(
                self.case.tensor(name).on(rank).overlaps for name in argument.names for rank in holders(self.case, name)
            )
            lines += self._around(argument, None if mine else argument.of("rank"))
        return lines

    def _result(self, outputs: Argument, want: Expected) -> list[str]:
        if want.is_list:
            lines = [
                f"for i, (got, want) in enumerate(zip({want.got}, {want.value})):",
                "    " + self._check(f'f"{outputs.variable}[{{i}}]"', "got", "want"),
            ]
        elif want.many:
            lines = [f'wrong |= check(rank, "{outputs.variable}", {want.got}, {want.value})']
        else:
            lines = [self._check(f'"{outputs.variable}"', want.got, want.value)]
        return [f"if {want.where}:", *(f"    {line}" for line in lines)] if want.where else lines

    def _check(self, what: str, got: str, want: str) -> str:
        return f"wrong |= check(rank, {what}, {got}, {f'[{want}]' if self.many else want})"

    def _has_base(self, argument: Argument) -> bool:
        """Whether some rank's tensor is a view."""
        return any(
            view(self.case.tensor(name).on(rank)).suffix or self.case.tensor(name).on(rank).layout.neg
            for name in argument.names
            for rank in range(self.case.world.size)
        )

    def _around(self, argument: Argument, want: str | None) -> list[str]:
        """The whole base storage, which is as it was but for what the view holds (`want`; None: what it holds now)."""
        everywhere = all(
            view(self.case.tensor(name).on(rank)).suffix
            for name in argument.names
            for rank in range(self.case.world.size)
        )
        name = argument.variable
        if argument.is_list:
            now = "fresh.copy_(got)._base" if want is None else "fresh._base"
            check = self._check(f'f"the memory around {name}[{{i}}]"', "got._base", now)
            lines = [f"for i, (got, fresh) in enumerate(zip({name}, {argument.of('rank')})):"]
            return [*lines, *_indented([check] if everywhere else ["if got._base is not None:", f"    {check}"])]
        fresh = f"{argument.of('rank')}.copy_({name})" if want is None else want
        check = self._check(f'"the memory around {name}"', f"{name}._base", f"{fresh}._base")
        return [check] if everywhere else [f"if {name}._base is not None:", f"    {check}"]

    def _unchanged(self, argument: Argument, what: str) -> list[str]:
        if argument.is_list:
            check = self._check(f'f"{argument.variable}[{{i}}]"', "got", "want")
            pairs = f"zip({argument.variable}, {argument.of('rank')})"
            return [f"for i, (got, want) in enumerate({pairs}):", f"    {check}"]
        return [self._check(f'"{what}"', argument.variable, argument.of("rank"))]

    def _described(self, outputs: Argument) -> list[str]:
        (name, *_), variable = outputs.names, outputs.variable
        specs = {rank: self.case.tensor(name).on(rank) for rank in range(self.case.world.size)}
        shape = picked({rank: str(spec.shape) for rank, spec in specs.items()})
        return [
            f"if ({variable}.dtype, tuple({variable}.shape)) != (torch.{specs[0].dtype}, {shape}):",
            f'    print(f"rank {{rank}}: {variable} is a {{{variable}.dtype}} of shape {{tuple({variable}.shape)}}, '
            f'expected {specs[0].dtype} of {{{shape}}}", flush=True)',
            "    return True",
        ]

    def _aliases(self, inputs: Argument, outputs: Argument) -> list[str]:
        x, y = inputs.variable, outputs.variable
        return [
            f"if {y}.untyped_storage().data_ptr() == {x}.untyped_storage().data_ptr():",
            f'    print(f"rank {{rank}}: {y} shares the memory of {x}", flush=True)',
            "    wrong = True",
        ]

    def _agree(self, call: Call, outputs: Argument) -> list[str]:
        ranks = self.case.ranks(call)
        group = f", group={self._group(call)}" if self._group(call) else ""
        lines = [f"everyone = [None] * {len(ranks)}", f"dist.all_gather_object(everyone, {outputs.variable}{group})"]
        beside = f"beside that of rank {ranks[0]}"
        if outputs.is_list:
            lines.append(f"for i, (got, want) in enumerate(zip({outputs.variable}, everyone[0])):")
            return [*lines, "    " + self._check(f'f"{outputs.variable}[{{i}}] {beside}"', "got", "want")]
        return [*lines, self._check(f'"{outputs.variable} {beside}"', outputs.variable, "everyone[0]")]

    # Making the tensors.

    def _make(self, checks: list[str]) -> tuple[list[str], dict[str, str]]:
        """Functions that make a rank's tensors, and expressions of those that are made in one place only."""
        makers: list[str] = []
        inline: dict[str, str] = {}
        for argument in self._arguments.values():
            if self._is_returned(argument):
                continue
            body = self._maker(argument)
            shared = bool(self._shared & set(argument.names))
            used = any(f"make_{argument.variable}(" in line for line in checks)
            if not used and len(body) == 1 and not shared:
                inline[argument.variable] = body[0].removeprefix("return ")
            else:
                makers += ["", f"def make_{argument.variable}(rank):", *_indented(body), ""]
        return makers, inline

    def _maker(self, argument: Argument) -> list[str]:
        if argument.is_list and self._shared & set(argument.names):
            singles = [self._arguments[(name,), False].of("rank") for name in argument.names]
            return [f"return [{', '.join(singles)}]"]
        having = {rank for name in argument.names for rank in holders(self.case, name)}
        ranks = sorted(having) if len(having) == 1 else list(range(self.case.world.size))
        groups: dict[Any, list[int]] = {}
        for rank in ranks:
            groups.setdefault(tuple(self.case.tensor(name).on(rank) for name in argument.names), []).append(rank)
        *rarer, commonest = sorted(groups.values(), key=len)
        lines = []
        for members in rarer:
            condition = f"rank == {members[0]}" if len(members) == 1 else f"rank in {members}"
            lines += [f"if {condition}:", *_indented(self._returned(argument, members))]
        return [*lines, *self._returned(argument, commonest)]

    def _returned(self, argument: Argument, ranks: Sequence[int]) -> list[str]:
        """Lines that return the tensor, or the list of tensors, of ranks that share their specs."""
        made = [self.data.tensor(name, ranks) for name in argument.names]
        if not argument.is_list:
            base, tensor = made[0]
            return [f"base = {base}", f"return {tensor}"] if base else [f"return {tensor}"]
        each = [re.sub(r"\bbase\b", base.replace("\\", r"\\"), tensor, count=1) for base, tensor in made]
        if len(each) > 1 and len(set(each)) == 1:
            return [f"return [{each[0]} for _ in range({'WORLD' if len(each) == self.case.world.size else len(each)})]"]
        return [f"return [{', '.join(each)}]"]

    # The function that runs.

    def _run(self, checks: list[str]) -> list[str]:
        lines = ["def run(rank):"]
        seen: list[str] = []
        for call in self.case.program:
            group = self._group(call)
            if group and group not in seen:
                seen.append(group)
                ranks = list(self.case.ranks(call))
                order = "" if ranks == sorted(ranks) else ", sort_ranks=False"
                lines.append(f"    {group} = dist.new_group({ranks}{order})")
        calls = [line for call in self.case.program for line in self._call(call, checks)]
        if self._only is not None:
            lines += [f"    if rank not in {self._only}:", "        return False"]
            if any(re.search(r"\bme\b", line) for line in (*calls, *checks)):
                lines.append(f"    me = {self._only}.index(rank)")
        lines += _indented(self._variables())
        if self._failing(*_RAISES):
            calls = [
                "try:",
                *_indented(calls),
                "except Exception as error:",
                '    print(f"rank {rank}: raised {type(error).__name__}: {error}", flush=True)',
                "    return True",
            ]
        lines += _indented(calls)
        return [*lines, *_indented(_concluded(checks))]

    def _variables(self) -> list[str]:
        lines = []
        for argument in sorted(self._arguments.values(), key=lambda a: a.is_list):
            if self._is_returned(argument):
                continue
            made = self._inline.get(argument.variable, argument.of("rank"))
            if argument.is_list and self._shared & set(argument.names):
                singles = [self._arguments[(name,), False].variable for name in argument.names]
                made = f"[{', '.join(singles)}]"
            lines.append(f"{argument.variable} = {made}")
        return lines

    def _call(self, call: Call, checks: list[str]) -> list[str]:
        outputs = self._argument(call, "outputs") if call.outputs else None
        if outputs is not None and self._is_returned(outputs):
            used = any(re.search(rf"\b{outputs.variable}\b", line) for line in checks)
            outputs = outputs if used else None
        names = Names(
            inputs=self._argument(call, "inputs").variable if call.inputs else "",
            outputs=outputs.variable if outputs is not None else "",
            me=self._me(call),
            group=f", group={self._group(call)}" if self._group(call) else "",
        )
        return self._guarded(call, self._with_splits(call, self.dialect.call(self.case, call, names)))


def _indented(lines: Sequence[str]) -> list[str]:
    return [f"    {line}" for line in lines]


def _concluded(checks: list[str]) -> list[str]:
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
