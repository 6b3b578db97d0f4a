"""The tensors of a script: what they are called, the functions that make them, and how calls are given them."""

from __future__ import annotations

import builtins
import keyword
import re
from collections.abc import Sequence
from typing import Any

from corpus.case import Call, Case
from corpus.meaning import holders
from fuzz.repro.data import Data
from fuzz.repro.expected import Argument

_LISTS = {
    "inputs": frozenset({"reduce_scatter", "scatter", "all_to_all"}),
    "outputs": frozenset({"all_gather", "gather", "all_to_all"}),
}
_WORDS = """
all_reduce averages base batch bits check collective contextlib dense dist error everyone faulthandler fresh funcol
functools got group hashlib i inf io itertools joined key legal main me message modulo MPI mpi4py multi_threaded_pg
nan numbers os out part Process products program r rank ray repeat run said sent shift signal subprocess sums sys
tempfile threading time timedelta told torch traceback TYPES want work worker works wrong
"""
_TAKEN = frozenset(_WORDS.split()) | frozenset(dir(builtins))
"""Names that a script uses itself."""


class Tensors:
    """The tensors that the calls of a case are given, as variables of a script.

    A list of tensors is one variable. With `apart` each tensor is a variable of its own, and a list is written where it
    is passed: for programs in which a tensor is a member of a list here and stands alone there.
    """

    def __init__(self, case: Case, *, faithful: bool, apart: bool) -> None:
        self.case = case
        self.data = Data(case, faithful=faithful, made=self._made)
        self._apart = apart
        self._arguments: dict[tuple[tuple[str, ...], bool], Argument] = {}
        self._names: set[str] = set()
        self._inline: dict[str, str] = {}
        self._origins = dict.fromkeys(tensor.data.tensor for tensor in case.tensors if tensor.data is not None)
        programs = dict.fromkeys(case.calls(rank) for rank in range(case.world.size))
        self._calls = [call for program in programs for call in program]
        self._shared: set[str] = set()
        self._find()

    def _find(self) -> None:
        for call in self._calls:
            for names, place in ((call.inputs, "inputs"), (call.outputs, "outputs")):
                is_list = call.op in _LISTS[place]
                for name in names if self._apart else ():
                    self._add((name,), name)
                if names and not (self._apart and is_list):
                    self._add(names, place if is_list else names[0], is_list=is_list)
        for name in self._origins:
            if self._in_a_list(name):
                self._shared.add(name)
            else:
                self._add((name,), name)
        places = [(name, key) for key in self._arguments for name in key[0]]
        self._shared |= {name for name, _ in places if sum(name == other for other, _ in places) > 1}
        for name in [n for n, key in places if key[1] and self._shared & set(key[0])]:
            self._add((name,), name)

    def _in_a_list(self, name: str) -> bool:
        return any(name in names for names, is_list in self._arguments if is_list)

    def _add(self, names: tuple[str, ...], name: str, *, is_list: bool = False) -> None:
        if (names, is_list) not in self._arguments:
            self._arguments[names, is_list] = Argument(names, self.fresh(name), is_list)

    def fresh(self, name: str) -> str:
        """A variable like `name` that nothing else in the script is called; it is taken from now on."""
        base = re.sub(r"\W", "_", name)
        candidate, count = base, 1
        while candidate in self._names or candidate in _TAKEN or keyword.iskeyword(candidate):
            count += 1
            candidate = f"{base}_{count}"
        self._names.add(candidate)
        return candidate

    def argument(self, call: Call, place: str) -> Argument:
        """The "inputs" or "outputs" of a call."""
        names = call.inputs if place == "inputs" else call.outputs
        is_list = call.op in _LISTS[place]
        if self._apart and is_list:
            return Argument(names, f"[{', '.join(self.variable(name) for name in names)}]", is_list)
        return self._arguments[names, is_list]

    def variable(self, name: str) -> str:
        """The variable, or member of one, that is a tensor."""
        if ((name,), False) in self._arguments:
            return self._arguments[(name,), False].variable
        return next(
            f"{argument.variable}[{argument.names.index(name)}]"
            for argument in self._arguments.values()
            if name in argument.names
        )

    def is_returned(self, argument: Argument) -> bool:
        """Whether the library returns it."""
        return any(self.case.tensor(name).spec.payload is None for name in argument.names)

    def _made(self, name: str, rank: str) -> str:
        """A tensor as another rank made it."""
        return self._arguments[(name,), False].of(rank)

    def makers(self, text: Sequence[str]) -> list[str]:
        """Functions that make a rank's tensors; what no line of `text` makes again is made in its one place."""
        bodies = {
            argument: self._maker(argument) for argument in self._arguments.values() if not self.is_returned(argument)
        }
        using = [*text, *(line for body in bodies.values() for line in body)]
        lines: list[str] = []
        for argument, body in bodies.items():
            shared = bool(self._shared & set(argument.names)) and not self._apart
            used = any(f"make_{argument.variable}(" in line for line in using)
            if not used and len(body) == 1 and not shared:
                self._inline[argument.variable] = body[0].removeprefix("return ")
            else:
                lines += ["", f"def make_{argument.variable}(rank):", *(f"    {line}" for line in body), ""]
        return lines

    def _maker(self, argument: Argument) -> list[str]:
        if argument.is_list and self._shared & set(argument.names):
            singles = [self._made(name, "rank") for name in argument.names]
            return [f"return [{', '.join(singles)}]"]
        having = {rank for name in argument.names for rank in holders(self.case, name)}
        everywhere = len(having) != 1 or any(name in self._origins for name in argument.names)
        ranks = list(range(self.case.world.size)) if everywhere else sorted(having)
        groups: dict[Any, list[int]] = {}
        for rank in ranks:
            groups.setdefault(tuple(self.case.tensor(name).on(rank) for name in argument.names), []).append(rank)
        *rarer, commonest = sorted(groups.values(), key=len)
        lines = []
        for members in rarer:
            condition = f"rank == {members[0]}" if len(members) == 1 else f"rank in {members}"
            lines += [f"if {condition}:", *(f"    {line}" for line in self._returned(argument, members))]
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

    def variables(self) -> list[str]:
        """Lines that make this rank's tensors, after `makers`."""
        lines = []
        for argument in sorted(self._arguments.values(), key=lambda a: a.is_list):
            if self.is_returned(argument):
                continue
            made = self._inline.get(argument.variable, argument.of("rank"))
            if argument.is_list and self._shared & set(argument.names):
                singles = [self.variable(name) for name in argument.names]
                made = f"[{', '.join(singles)}]"
            lines.append(f"{argument.variable} = {made}")
        return lines
