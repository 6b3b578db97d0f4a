"""The script of an illegal program: what each rank did, which should have been to refuse it, all of them, in time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from corpus.case import Call, Case
from corpus.meaning import uses
from fuzz.repro.code import ReproError
from fuzz.repro.dialects import Dialect
from fuzz.repro.expected import Argument
from fuzz.repro.program import Program, among, indented

TIMEOUT = 5
"""Seconds after which the library gives up on ranks that do not come."""

_VERDICTS = {
    "silently accepted": 'not any(text.startswith("raised") for text in everyone)',
    "raised on some ranks": "len(set(map(how, everyone))) > 1",
    "hang": 'any("timed out" in text.lower() for text in everyone)',
}
"""When it is wrong, by the kind of failure, of what every rank said."""

_HOW = '''
def how(text):
    """Whether a rank returned, raised, or raised because others did not come."""
    return "timed out" if "timed out" in text.lower() else text.split()[0]
'''


class Illegal(Program):
    """An illegal program: ranks may have programs of their own, which are caught when they raise."""

    timeout = TIMEOUT

    def __init__(self, case: Case, failures: Sequence[Mapping[str, Any]], dialect: Dialect, *, faithful: bool) -> None:
        if len({spec.memory for _, spec in case.specs()}) > 1:
            raise ReproError("this version writes tensors of one memory kind only")
        super().__init__(case, failures, dialect, faithful=faithful, apart=True)
        self._seen = {str(failure["kind"]) for failure in failures}
        changed = self._changed()
        verdicts = [f"wrong |= {verdict}" for kind, verdict in _VERDICTS.items() if kind in self._seen]
        self.checks = bool(changed)
        self.tells = bool(verdicts) or "group unusable afterwards" in self._seen
        self.helpers = _HOW.splitlines() if "raised on some ranks" in self._seen else []
        self.makers = self.tensors.makers(changed)
        self.run = [
            "def run(rank):",
            *indented(
                [
                    *self.groups(),
                    *self.tensors.variables(),
                    "try:",
                    *indented(self._programs()),
                    '    said = "returned"',
                    "except Exception as error:",
                    '    said = f"raised {type(error).__name__}: {error}"',
                    'print(f"rank {rank}: {said}", flush=True)',
                    *self._concluded(verdicts, changed),
                ]
            ),
        ]

    def _programs(self) -> list[str]:
        """The calls, as each rank makes them."""
        ranks: dict[tuple[Call, ...], list[int]] = {}
        for rank in range(self.case.world.size):
            ranks.setdefault(self.case.calls(rank), []).append(rank)
        *rarer, commonest = sorted(ranks, key=lambda program: len(ranks[program]))
        if not rarer:
            return self._program(commonest)
        lines: list[str] = []
        for program in rarer:
            lines += [f"{'elif' if lines else 'if'} {among(ranks[program])}:", *indented(self._program(program))]
        return [*lines, "else:", *indented(self._program(commonest))]

    def _program(self, program: tuple[Call, ...]) -> list[str]:
        lines: list[str] = []
        for index, call in enumerate(program):
            lines += [*self.call(index, call, []), *self.waits(program, index)]
        return lines or ["pass  # no call"]

    def _concluded(self, verdicts: list[str], changed: list[str]) -> list[str]:
        usable = self._usable() if "group unusable afterwards" in self._seen else []
        told = ["told(rank, said)  # wait for the others"] if usable else []
        told = [f"everyone = {self._told()}"] if verdicts else told
        if len(verdicts) == 1 and not changed and not usable:
            return [*told, f"return {verdicts[0].removeprefix('wrong |= ')}"]
        if not (verdicts or changed or usable):
            return ["return False"]
        return ["wrong = False", *told, *verdicts, *changed, *usable, "return wrong"]

    def _told(self) -> str:
        """What the ranks say that can know of the mistake."""
        ranks = _concerned(self.case)
        if len(ranks) == self.case.world.size:
            return "told(rank, said)"
        return f"[text for r, text in enumerate(told(rank, said)) if {among(ranks).replace('rank', 'r')}]"

    def _changed(self) -> list[str]:
        """Where a rank raised, its tensors are as it made them."""
        kind = "tensors changed although it raised"
        if kind not in self._seen:
            return []
        named = {failure["tensor"] for failure in self.failures if failure["kind"] == kind and failure.get("tensor")}
        used: dict[str, None] = {}
        for rank in range(self.case.world.size):
            for call in self.case.calls(rank):
                use = uses(self.case, call, rank)
                used |= dict.fromkeys(name for name in use.inputs + use.outputs if not named or name in named)
        names = [name for name in used if self.case.tensor(name).spec.payload is not None]
        checks = [line for name in names for line in self._same(name)]
        return ['if said.startswith("raised"):', *indented(checks)] if checks else []

    def _same(self, name: str) -> list[str]:
        """A tensor, or the whole base storage of a view, is as it was made."""
        argument = Argument((name,), self.tensors.variable(name), is_list=False)
        made = argument.of("rank")
        if self.has_base(argument):
            return self.around(argument, made)
        return [self.check(f'"{argument.variable}"', argument.variable, made)]

    def _usable(self) -> list[str]:
        """A legal call in each group that was used, which has to work afterwards."""
        lines: list[str] = []
        for call in {self.group(call): call for call in self._calls}.values():
            ranks, group = self.case.ranks(call), self.group(call)
            size = "WORLD" if len(ranks) == self.case.world.size else str(len(ranks))
            where = f" in {group}" if group else ""
            block = [
                "one = torch.ones(1)",
                "try:",
                f"    dist.all_reduce(one{f', group={group}' if group else ''})",
                '    said = f"summed {one.item()}, expected {' + size + '}"',
                f"    wrong |= one.item() != {size}",
                "except Exception as error:",
                '    said = f"raised {type(error).__name__}: {error}"',
                "    wrong = True",
                f'print(f"rank {{rank}}: a legal all_reduce{where} afterwards {{said}}", flush=True)',
            ]
            lines += self.guarded(ranks, block)
        return lines


def _concerned(case: Case) -> list[int]:
    """Ranks that take part in a call; where the number of calls differs, those that make more of them than another."""
    counts = {rank: sum(_takes_part(case, call, rank) for call in case.calls(rank)) for rank in range(case.world.size)}
    if case.illegal == "count":
        members = [rank for rank in counts if any(_takes_part(case, call, rank) for call in case.program)]
        fewest = min((counts[rank] for rank in members), default=0)
        return [rank for rank, count in counts.items() if count > fewest]
    return [rank for rank, count in counts.items() if count]


def _takes_part(case: Case, call: Call, rank: int) -> bool:
    use = uses(case, call, rank)
    return bool(use.inputs or use.outputs) or (call.op == "barrier" and rank in case.ranks(call))
