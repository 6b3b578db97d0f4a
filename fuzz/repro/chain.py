"""The script of a program whose calls build on one another: what every rank should hold is computed step by step."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from corpus.case import Call, Case
from corpus.meaning import Flow, uses, writes
from fuzz.repro.code import ReproError, picked
from fuzz.repro.dialects import Dialect
from fuzz.repro.expected import Argument, Expected, expected
from fuzz.repro.program import Program, among, concluded, indented
from fuzz.repro.related import related

_LOCAL = {"copy": "{x}", "negate": "-{x}", "double": "{x} + {x}"}
_GATHERING = frozenset({"all_gather", "gather"})


def chained(case: Case) -> bool:
    """Whether some call reads or overwrites what an earlier one was given, is a local computation, or is waited for
    later: what the outputs hold at the end is then not said by each call alone."""
    if any(call.local or call.wait is not None for call in case.program):
        return True
    for rank in range(case.world.size):
        used: set[str] = set()
        written: set[str] = set()
        for call in case.program:
            use, targets = uses(case, call, rank), set(writes(case, call, rank))
            if targets & used or set(use.inputs) & written:
                return True
            used |= {*use.inputs, *use.outputs}
            written |= targets
    return False


@dataclass(frozen=True, slots=True)
class _Step:
    """Lines of the reference. A comparison has no `states`; a step gives those variables new values."""

    lines: list[str]
    states: tuple[str, ...] = ()


class Chain(Program):
    """A program of calls over tensors that other calls read, write and overwrite.

    The reference keeps, for each tensor, a list of what every rank should hold (a state). After the steps of a call
    that failed its tensors are compared; where a later call overwrites one of them, the run has kept a copy.
    """

    def __init__(self, case: Case, failures: Sequence[Mapping[str, Any]], dialect: Dialect, *, faithful: bool) -> None:
        super().__init__(case, failures, dialect, faithful=faithful, apart=True)
        self._flow = Flow(case)
        self._states = {tensor.name: self.tensors.fresh(f"want_{self._name(tensor.name)}") for tensor in case.tensors}
        self._kept: dict[tuple[str, tuple[tuple[int, ...], ...]], str] = {}
        # By call: lines that keep copies before it.
        self._copies: dict[int, list[str]] = {}
        self._settled = [self._is_settled(index) for index in range(len(case.program))]
        failing = self.failing("wrong result")
        found = [one for index in failing for one in self._unsettled(index)]
        self.many = any(one.many for _, one in found)
        sides = related(self)
        self.related = bool(sides)
        self.bitwise = all(case.program[index].reduce_op is None for index in failing) and not sides
        steps = [step for index in range(len(case.program)) for step in self._steps(index)]
        checks = self._needed([*steps, _Step(sides)])
        self.checks = any("check(" in line for line in checks)
        helpers = dict.fromkeys(one.helper for _, one in found)
        self.helpers = [line for helper in helpers for line in helper.splitlines()]
        self.makers = self.tensors.makers(checks)
        self.run = self._run(checks)

    def _name(self, name: str) -> str:
        return self.tensors.variable(name)

    def _is_settled(self, index: int) -> bool:
        """Whether what a call writes has one legal value, so that other calls may read it."""
        call = self.case.program[index]
        if call.reduce_op is None:
            return True
        program = tuple(replace(each, wait=None) for each in self.case.program[: index + 1])
        flow = Flow(replace(self.case, program=program, relations=()))
        places = [(name, rank) for rank in self.case.ranks(call) for name in writes(self.case, call, rank)]
        return all(flow.known(name, rank).settled for name, rank in places)

    # The reference.

    def _steps(self, index: int) -> list[_Step]:
        """What a call changes, and after it the comparisons that its failures ask for."""
        call = self.case.program[index]
        if not call.outputs:
            return []
        before = self._compared(index, "buffer changed", others=True)
        steps = [self._assigned(index, name) for name in dict.fromkeys(call.outputs)] if self._settled[index] else []
        if len(steps) > 1 and set(call.outputs) & set(call.inputs):
            raise ReproError(f"program[{index}] {call.op}: this version writes no list of outputs that are inputs too")
        checks = [*self._described(index), *self._results(index), *self._compared(index, "input changed")]
        return [*before, *steps, *checks, *self._others(index)]

    def _assigned(self, index: int, name: str) -> _Step:
        """The state of an output after a call, for all ranks at once."""
        call, state = self.case.program[index], self._states[name]
        ranks = [rank for rank in self.case.ranks(call) if name in writes(self.case, call, rank)]
        value = _brief(self._value(index, name))
        note = f"  # {self._title(index)}"
        everywhere = len(ranks) == self.case.world.size
        if everywhere and not re.search(r"\brank\b", value):
            line = f"{state} = [{value}] * WORLD"
        elif everywhere:
            each = re.fullmatch(r"(\w+)\[rank\]", value)
            line = f"{state} = list({each[1]})" if each else f"{state} = [{value} for rank in range(WORLD)]"
        else:
            line = f"{state} = [{value} if {among(ranks)} else {state}[rank] for rank in range(WORLD)]"
        return _Step([*self.with_splits(call, [line + note])], (state,))

    def _value(self, index: int, name: str) -> str:
        """What an output holds on `rank`, in its own shape."""
        call = self.case.program[index]
        inputs = self._before(call)
        place = call.outputs.index(name)
        if call.local:
            value = _LOCAL[call.op].format(x=inputs.of("rank"))
        elif call.op in _GATHERING:
            value = inputs.of(str(self.case.ranks(call)[place]))
        elif call.op == "all_to_all":
            value = inputs.of(str(self.case.ranks(call)[place]), self.me(call))
        else:
            outputs = self.tensors.argument(call, "outputs")
            value = expected(self.case, call, inputs, outputs, self.me(call), settled=True).value
        return self._shaped(call, name, value)

    def _shaped(self, call: Call, name: str, value: str) -> str:
        ranks = self.case.ranks(call)
        shapes = {self.case.tensor(each).on(rank).shape for each in (*call.inputs, name) for rank in ranks}
        whole = call.op == "all_to_all_single" or (call.op == "all_gather_into_tensor" and "reshape" not in value)
        flat = call.op == "reduce_scatter_tensor" and all(len(shape) == 1 for shape in shapes)
        if len(shapes) == 1 or whole or flat:
            return value
        own = {rank: str(self.case.tensor(name).on(rank).shape) for rank in range(self.case.world.size)}
        return f"({value}).reshape({picked(own)})"

    def _before(self, call: Call) -> Argument:
        """The inputs of a call as the states have them."""
        given = self.tensors.argument(call, "inputs")
        return replace(given, states=tuple(self._states[name] for name in given.names))

    def _needed(self, steps: list[_Step]) -> list[str]:
        """The comparisons, the steps that lead to them, and the states that these begin with."""
        kept: list[_Step] = []
        needed: set[str] = set()
        for step in reversed(steps):
            if not step.states or needed & set(step.states):
                kept.insert(0, step)
                needed |= self._mentioned(step.lines)
        first: list[str] = []
        known: set[str] = set()
        for step in kept:
            reads = self._mentioned([re.sub(r"^\w+ = ", "", line) for line in step.lines])
            for name, state in self._states.items():
                if state in reads - known:
                    first.append(f"{state} = [make_{self._name(name)}(r) for r in range(WORLD)]")
                    known.add(state)
            known |= set(step.states)
        note = ["# What every rank should hold, step by step."] if first else []
        return [*note, *first, *_merged([line for step in kept for line in step.lines])]

    def _mentioned(self, lines: Sequence[str]) -> set[str]:
        words = {word for line in lines for word in re.findall(r"\w+", line)}
        return words & set(self._states.values())

    # The comparisons.

    def _title(self, index: int) -> str:
        """What a call is called: its op, and which one where there are more."""
        same = [place for place, call in enumerate(self.case.program) if call.op == self.case.program[index].op]
        return self.case.program[index].op + (f" {same.index(index) + 1} of {len(same)}" if len(same) > 1 else "")

    def _after(self, name: str, index: int) -> str:
        """The variable that holds a tensor as a call left it: the tensor, or a copy from before it is overwritten."""
        overwritten: dict[int, list[int]] = {}
        for rank in range(self.case.world.size):
            later = self._flow.overwritten(name, rank, index)
            if later is not None:
                overwritten.setdefault(later, []).append(rank)
        if not overwritten:
            return self._name(name)
        first, *others = sorted(overwritten)
        place = (name, tuple((later, *overwritten[later]) for later in (first, *others)))
        if place not in self._kept:
            kept = self._kept[place] = self.tensors.fresh(f"{self._name(name)}_before_{first}")
            whole = len(overwritten[first]) == self.case.world.size
            tail = "" if whole else f" if {among(overwritten[first])} else {self._name(name)}"
            self._copies.setdefault(first, []).append(f"{kept} = {self._name(name)}.clone(){tail}")
            for later in others:
                copied = f"{kept} = {self._name(name)}.clone()"
                self._copies.setdefault(later, []).extend([f"if {among(overwritten[later])}:", f"    {copied}"])
        return self._kept[place]

    def _unsettled(self, index: int) -> list[tuple[str, Expected]]:
        """By output, what is legal where that is not one value."""
        call = self.case.program[index]
        if self._settled[index] or not call.outputs:
            return []
        (name,) = call.outputs
        outputs = replace(self.tensors.argument(call, "outputs"), variable=self._after(name, index))
        return [(name, expected(self.case, call, self._before(call), outputs, self.me(call), settled=False))]

    def _results(self, index: int) -> list[_Step]:
        if index not in self.failing("wrong result"):
            return self._around(index)
        call = self.case.program[index]
        named = self.named(index, "wrong result")
        steps = []
        for name in dict.fromkeys(call.outputs):
            if named and name not in named:
                continue
            ranks = [rank for rank in self.case.ranks(call) if name in writes(self.case, call, rank)]
            what = f'"{self._name(name)} after {self._title(index)}"'
            unsettled = dict(self._unsettled(index)).get(name)
            if unsettled is None:
                line = self.check(what, self._after(name, index), f"{self._states[name]}[rank]")
            elif unsettled.many:
                # The orders of additions are told apart by the tensors, so that these may not be one.
                distinct = re.sub(r"\[(\w+\[r\]) for r in ", r"[\1.clone() for r in ", unsettled.value)
                line = f"wrong |= check(rank, {what}, {unsettled.got}, {distinct})"
            else:
                line = self.check(what, unsettled.got, _brief(unsettled.value))
            steps.append(_Step(self.guarded(ranks, self.with_splits(call, [line]))))
        return [*steps, *self._around(index)]

    def _around(self, index: int) -> list[_Step]:
        """The memory around the views, at the end: no call has any business there."""
        call = self.case.program[index]
        if "neighbours changed" not in self.kinds(index):
            return []
        named = self.named(index, "neighbours changed") or {*call.inputs, *call.outputs}
        arguments = [Argument((name,), self._name(name), is_list=False) for name in sorted(named)]
        known = {tensor.name for tensor in self.case.tensors}
        lines = []
        for argument in arguments:
            if argument.names[0] in known and self.has_base(argument):
                overlaps = any(
                    self.case.tensor(argument.names[0]).on(rank).overlaps for rank in range(self.case.world.size)
                )
                lines += self.around(argument, argument.of("rank") if overlaps else None)
        return [_Step(lines)] if lines else []

    def _compared(self, index: int, kind: str, *, others: bool = False) -> list[_Step]:
        """Inputs of a call, or buffers of ranks that are not its root (`others`), hold what they held before."""
        call = self.case.program[index]
        if kind not in self.kinds(index):
            return []
        names = call.outputs if others else tuple(name for name in call.inputs if name not in call.outputs)
        named = self.named(index, kind)
        lines = []
        for name in dict.fromkeys(names):
            if named and name not in named:
                continue
            where = [
                rank
                for rank in self.case.ranks(call)
                if name in (use := uses(self.case, call, rank)).inputs + use.outputs
                and not (others and name in writes(self.case, call, rank))
            ]
            what = f'"{self._name(name)}, which {self._title(index)} may not change,"'
            check = self.check(what, self._after(name, index), f"{self._states[name]}[rank]")
            lines += self.guarded(where, [check])
        return [_Step(lines)] if lines else []

    def _described(self, index: int) -> list[_Step]:
        call = self.case.program[index]
        if not self.kinds(index) & {"wrong shape", "wrong dtype"}:
            return []
        described = [line for name in call.outputs for line in self.described(name, self._name(name))]
        return [_Step(self.guarded(self.case.ranks(call), described))]

    def _others(self, index: int) -> list[_Step]:
        """Memory that outputs and inputs share, and ranks that hold different bits."""
        call, kinds = self.case.program[index], self.kinds(index)
        lines = []
        if "output aliases input" in kinds:
            for x in dict.fromkeys(call.inputs):
                for y in dict.fromkeys(call.outputs):
                    lines += self.aliases(self._name(x), self._name(y))
        if "ranks disagree" in kinds:
            for name in dict.fromkeys(call.outputs):
                argument = Argument((name,), self._name(name), is_list=False)
                lines += self.agree(call, argument, self._after(name, index))
        return [_Step(self.guarded(self.case.ranks(call), lines))] if lines else []

    # The function that runs.

    def _run(self, checks: list[str]) -> list[str]:
        inputs = [word for call in self.case.program for name in call.inputs for word in [self._name(name)]]
        calls: list[str] = []
        for index, call in enumerate(self.case.program):
            calls += self._copies.get(index, [])
            calls += self.call(index, call, [*checks, *inputs])
            calls += self.waits(self.case.program, index)
        lines = [*self.groups(), *self.tensors.variables(), *self.caught(calls), *concluded(checks)]
        return ["def run(rank):", *indented(lines)]


def _merged(lines: list[str]) -> list[str]:
    """The lines, where neighbouring blocks under one condition are one block."""
    merged: list[str] = []
    condition = ""
    for line in lines:
        if line.startswith("if ") and line == condition:
            continue
        if not line.startswith(" "):
            condition = line
        merged.append(line)
    return merged


def _brief(value: str) -> str:
    """A value in which all ranks' states are written as the list that they are."""
    value = re.sub(r"\[(\w+)\[r\] for r in range\(WORLD\)\]", r"\1", value)
    return re.sub(r"\bsum\((\w+)\[r\] for r in range\(WORLD\)\)", r"sum(\1)", value)
