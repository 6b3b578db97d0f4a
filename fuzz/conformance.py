"""What a backend's contract says, tried cell by cell: each line runs, and what it leaves out is tried too.

A cell is one small program. A declared one is legal and has to be right (or, a view, be refused where the contract lets
it). What the contract does not list is an illegal program ("unsupported dtype"); that it runs all the same is noted.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final, Protocol

from corpus.case import (
    OPS,
    REDUCE_OPS,
    REDUCING,
    ROOTED,
    WORLD,
    Call,
    Case,
    CaseError,
    Group,
    Tensor,
    TensorSpec,
    World,
)
from corpus.contract import Contract
from corpus.dtypes import DTYPES
from fuzz.backends.base import Backend
from fuzz.runner import Outcome, Runner
from oracles.errors import first_line
from oracles.failure import Verdict
from oracles.illegal import accepted
from oracles.observation import Status as Ended
from strategies.calls import LISTS, WHOLE, gives_list, in_place, shapes, split_matrix, takes_list
from strategies.layouts import VIEWS, Plan, View, lay_out

CHUNK: Final = (3,)
"""The shape that a rank contributes or receives: small, so that a cell is what is tried and not a size."""
_VIEWED: Final = (2, 3, 4)
"""The same where it is a view: enough dimensions for every kind, of different extents."""
_SINGLETON: Final = (2, 1, 3)
_OFFSET: Final = "offset"
"""A dense view with foreign memory on both sides."""
_KINDS: Final = tuple({view.kind: view for view in reversed(VIEWS)}.values())[::-1]
"""The first view of each kind that is drawn."""
_GUARD: Final = 3
_ROOM: Final = 1 << 16
"""Elements of base storage that any of these views fits in."""

DTYPE_TABLE, INPUT_TABLE, OUTPUT_TABLE, FORM_TABLE = "Dtypes", "Views as inputs", "Views as outputs", "Forms"
PLAIN, ASYNC, UNEVEN, STACKED, PERMUTED, ALONE = "plain", "async", "uneven", "stacked", "permuted group", "1 rank"


class Status(StrEnum):
    """What one cell showed."""

    RIGHT = "right"
    WRONG = "WRONG"
    """Something declared fails, or a cited promise to refuse is broken."""
    REFUSED = "refused"
    """Every rank that can know raised, as the contract says or allows."""
    RUNS = "runs"
    """It is not declared, and no rank raised."""
    BADLY = "refused badly"
    """It is not declared, and neither ran nor was cleanly refused: a crash, a hang, changed tensors."""
    LOST = "lost"
    """No verdict: the environment failed."""
    NEVER_RUN = "never run"


@dataclass(frozen=True, slots=True)
class Cell:
    """One cell of a matrix. `reason`: one line, "" where it is right."""

    table: str
    row: str
    column: str
    declared: bool
    status: Status = Status.NEVER_RUN
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Effect:
    """What setting a flag changed: `seen` in words, "" for nothing that could be seen. `tried`: the values."""

    flag: str
    scope: str
    tried: tuple[str, ...]
    seen: str = ""


@dataclass(frozen=True, slots=True)
class Matrix:
    """All that was tried of one backend. `reason`: why nothing was, "" where something was."""

    backend: str
    summary: str
    cells: tuple[Cell, ...]
    effects: tuple[Effect, ...] = ()
    versions: tuple[tuple[str, str], ...] = ()
    reason: str = ""

    @property
    def exit_status(self) -> int:
        """0: what is declared is right, the rest is refused or noted; 1: something is wrong; 3: some has no verdict."""
        if any(cell.status is Status.WRONG for cell in self.cells):
            return 1
        unsettled = any(
            cell.status is Status.LOST or (cell.declared and cell.status is Status.NEVER_RUN) for cell in self.cells
        )
        return 3 if self.reason or unsettled else 0


class Runs(Protocol):
    """What runs a case: `fuzz.runner.Runner`."""

    def backend(self, name: str) -> Backend:
        """Return a backend by name."""

    def run(self, case: Case) -> Outcome:
        """Run a case and judge it."""


@dataclass(frozen=True, slots=True)
class Maker:
    """Makes the small program of one call, for one backend under some flags."""

    name: str
    contract: Contract
    memory: str = "cpu"
    flags: tuple[tuple[str, str], ...] = ()

    def case(
        self,
        op: str,
        reduce_op: str | None = None,
        dtype: str = "float32",
        *,
        chunk: tuple[int, ...] = CHUNK,
        size: int = 2,
        form: str = "joined",
        pattern: str = "even",
        permuted: bool = False,
        async_op: bool = False,
    ) -> Case:
        """One call of all ranks, with plain tensors. `form` and `pattern`: as in `strategies.calls.shapes`."""
        promise = self.contract.ops[op]
        size = max(size, promise.min_world)
        inputs: list[Tensor] = []
        outputs: list[Tensor] = []
        if op != "barrier":
            given, taken = shapes(op, chunk, size, form, pattern)
            payload = None if promise.returned else "poison"
            inputs = self._tensors("x", given, dtype, "index", listed=takes_list(op))
            outputs = (
                inputs if in_place(op, promise) else self._tensors("y", taken, dtype, payload, listed=gives_list(op))
            )
        ragged = op == "all_to_all_single" and pattern != "even"
        call = Call(
            op,
            tuple(tensor.name for tensor in inputs),
            tuple(tensor.name for tensor in outputs),
            group="g0" if permuted else WORLD,
            reduce_op=reduce_op,
            root=0 if op in ROOTED else None,
            peer=1 if op == "send_recv" else None,
            splits=split_matrix(pattern, size, chunk[0]) if ragged else None,
            factor=2.0 if reduce_op == "premul_sum" else None,
            async_op=async_op,
        )
        groups = (Group("g0", tuple(range(size))[::-1]),) if permuted else ()
        tensors = tuple(dict.fromkeys((*inputs, *outputs)))
        return Case(self.name, World(size, groups), tensors, (call,), flags=self.flags)

    def _tensors(
        self,
        letter: str,
        each: tuple[tuple[tuple[int, ...], ...], ...],
        dtype: str,
        payload: str | None,
        *,
        listed: bool,
    ) -> list[Tensor]:
        made = []
        for place, by_rank in enumerate(each):
            specs = [TensorSpec(shape, dtype, memory=self.memory, payload=payload) for shape in by_rank]
            own = tuple((rank, spec) for rank, spec in enumerate(specs) if spec != specs[0])
            made.append(Tensor(f"{letter}{place}" if listed else letter, specs[0], own))
        return made

    def plainest(self, op: str, dtype: str = "float32") -> tuple[str | None, str] | None:
        """The first reduce op, and this dtype or the first one, that the contract has for a collective; None: none."""
        promise = self.contract.ops[op]
        if op == "barrier":
            return None, dtype
        for reduce_op in REDUCE_OPS if op in REDUCING else (None,):
            found = [name for name in DTYPES if promise.accepts(name, reduce_op)]
            if found:
                return reduce_op, dtype if dtype in found else found[0]
        return None


@dataclass(frozen=True, slots=True)
class Trial:
    """A cell and the program that settles it."""

    cell: Cell
    case: Case


def plan(name: str, backend: Backend) -> list[Trial]:
    """Return everything that is to be tried of a backend, in the order of the matrix."""
    maker = Maker(name, backend.contract({}), backend.memory())
    ops = [op for op in OPS if op in maker.contract.ops]
    trials = [trial for op in ops for trial in _dtypes(maker, op)]
    for table, outputs in ((INPUT_TABLE, False), (OUTPUT_TABLE, True)):
        trials += [trial for op in ops for trial in _views(maker, op, table, outputs=outputs)]
    return trials + [trial for op in ops for trial in _forms(maker, op, backend.modes)]


def _dtypes(maker: Maker, op: str) -> Iterator[Trial]:
    if op == "barrier":
        return
    promise = maker.contract.ops[op]
    for reduce_op in REDUCE_OPS if op in REDUCING else (None,):
        for dtype in DTYPES:
            declared = promise.accepts(dtype, reduce_op)
            case = maker.case(op, reduce_op, dtype)
            if not declared:
                case = replace(case, illegal="unsupported dtype")
            yield Trial(Cell(DTYPE_TABLE, f"{op} {reduce_op}" if reduce_op else op, dtype, declared), case)


def _views(maker: Maker, op: str, table: str, *, outputs: bool) -> Iterator[Trial]:
    """Every kind of view that is drawn, on the inputs or on the outputs; what is both stands among the outputs."""
    promise = maker.contract.ops[op]
    both = in_place(op, promise)
    if op == "barrier" or (promise.returned and outputs) or (both and not outputs):
        return
    for view in _KINDS:
        plainest = maker.plainest(op, "complex64" if view.kind == "conj" else "float32")
        if plainest is None:
            continue
        case = maker.case(op, *plainest, chunk=_SINGLETON if view.kind == "singleton" else _VIEWED)
        names = {name for call in case.program for name in (call.outputs if outputs else call.inputs)}
        laid = tuple(
            _viewed(tensor, view, writable=outputs) if tensor.name in names else tensor for tensor in case.tensors
        )
        if laid != case.tensors:
            column = _OFFSET if view.kind == "contiguous" else view.kind
            yield Trial(Cell(table, op, column, True), replace(case, tensors=laid))


def _viewed(tensor: Tensor, view: View, *, writable: bool) -> Tensor:
    """The tensor as such a view; as it is, where its dtype or use has no such view."""
    laid = lay_out(tensor.spec, Plan(view, _GUARD, _GUARD), room=_ROOM, writable=writable)
    instead = lay_out(tensor.spec, Plan(View("step", 2), _GUARD, _GUARD), room=_ROOM, writable=writable)
    return tensor if view.kind != "step" and laid == instead else replace(tensor, spec=laid)


def _forms(maker: Maker, op: str, modes: tuple[str, ...]) -> Iterator[Trial]:
    """One dtype, in every way to call that the contract has."""
    promise, plainest = maker.contract.ops[op], maker.plainest(op)
    if plainest is None:
        return
    forms = {PLAIN: maker.case(op, *plainest)}
    if promise.async_op:
        forms[ASYNC] = maker.case(op, *plainest, async_op=True)
    if promise.uneven and op in LISTS | {"all_to_all_single"}:
        forms[UNEVEN] = maker.case(op, *plainest, pattern="ragged")
    if promise.stacked and op in WHOLE:
        forms[STACKED] = maker.case(op, *plainest, form="stacked")
    if maker.contract.permuted_groups.value:
        forms[PERMUTED] = maker.case(op, *plainest, permuted=True)
    if max(promise.min_world, 2 if op == "send_recv" else 1) == 1:
        forms[ALONE] = maker.case(op, *plainest, size=1)
    for mode in modes[1:]:
        forms[mode] = replace(forms[PLAIN], mode=mode)
    for column, case in forms.items():
        yield Trial(Cell(FORM_TABLE, op, column, True), case)


def settle(runner: Runs, trial: Trial) -> tuple[Cell, Outcome | None]:
    """Run a cell's program, and return the cell with what it showed, and how it ran (None: it was not run)."""
    try:
        outcome = runner.run(trial.case)
    except CaseError as error:
        return replace(trial.cell, reason=_line(str(error))), None
    judgement = outcome.judgement
    bugs = [failure for failure in judgement.failures if failure.bug]
    status, reason = Status.RIGHT, ""
    if judgement.lost:
        status, reason = Status.LOST, judgement.lost
    elif bugs:
        status, reason = Status.WRONG, bugs[0].kind
        # Where a process happened to be when it died is no matter of the contract.
        reason += f": {bugs[0].message}" if bugs[0].verdict is not Verdict.DEAD else ""
    elif judgement.refused:
        raised = [seen for seen in outcome.observations if seen.status is Ended.RAISED]
        status, reason = Status.REFUSED, first_line(raised[0]) if raised else ""
    elif not trial.cell.declared and judgement.failures:
        status, reason = _undeclared(outcome)
    return replace(trial.cell, status=status, reason=_line(reason)), outcome


def _undeclared(outcome: Outcome) -> tuple[Status, str]:
    """What became of an illegal program that was not cleanly refused. In words without data: many cells share them."""
    kind = outcome.judgement.failures[0].kind
    if kind == "silently accepted":
        return Status.RUNS, accepted(outcome.observations) or "nothing says whether the result is right"
    said = [first_line(seen) for seen in outcome.observations if seen.status is Ended.RAISED]
    return Status.BADLY, f"{kind} ({said[0]})" if said else kind


def check(name: str, pythons: Mapping[str, str] | None = None, *, ray_address: str | None = None) -> Matrix:
    """Try every cell and flag of a backend. `pythons` and `ray_address`: as for `fuzz.runner.Runner`.

    Raises:
        UnknownBackend: there is none of this name.
    """
    with Runner(pythons=pythons, ray_address=ray_address) as runner:
        backend = runner.backend(name)
        trials = plan(name, backend)
        reason = backend.unavailable()
        if reason is not None and ray_address is None:
            cells = tuple(replace(trial.cell, reason=reason) for trial in trials)
            untried = tuple(Effect(flag.name, flag.scope, ()) for flag in backend.flags)
            return Matrix(name, backend.summary, cells, untried, reason=reason)
        settled = [settle(runner, trial) for trial in trials]
        outcomes = [outcome for _, outcome in settled if outcome is not None]
        versions = next((seen.versions for outcome in outcomes for seen in outcome.observations if seen.versions), ())
        return Matrix(name, backend.summary, tuple(cell for cell, _ in settled), effects(runner, name), versions)


def effects(runner: Runs, name: str) -> tuple[Effect, ...]:
    """Set each flag to each of its values, and 1 where they are numbers, and see what changes against leaving it unset.

    Looked at: which routes the backend reports, how the ranks end, and what they raise, in a plain call of every
    collective (of as many elements as an in-place path needs) and in one whose shapes differ among the ranks, where the
    contract promises to refuse that. The first value that changes something is told.
    """
    backend = runner.backend(name)
    found = []
    for flag in backend.flags:
        numbers = all(value.isdigit() for value in flag.values)
        tried, seen = [], ""
        for value in dict.fromkeys((*flag.values, *(("1",) if numbers else ()))):
            tried.append(value)
            seen = _effect(runner, name, backend, (flag.name, value))
            if seen:
                break
        found.append(Effect(flag.name, flag.scope, tuple(tried), seen))
    return tuple(found)


def _effect(runner: Runs, name: str, backend: Backend, setting: tuple[str, str]) -> str:
    with_it = Maker(name, backend.contract(dict((setting,))), backend.memory(), (setting,))
    for case in _probes(with_it):
        without, set_to = _seen(runner, replace(case, flags=())), _seen(runner, case)
        if without != set_to:
            return f"{case.program[0].op}: {set_to[:100]} with {setting[1]}, and not without"
    return ""


def _probes(maker: Maker) -> Iterator[Case]:
    elements = max(maker.contract.in_place_from.value, *CHUNK)
    for op in maker.contract.ops:
        plainest = maker.plainest(op)
        if plainest is not None:
            yield maker.case(op, *plainest, chunk=(elements,))
    for op in maker.contract.illegal["shape"].value if "shape" in maker.contract.illegal else ():
        plainest = maker.plainest(op)
        if plainest is not None and in_place(op, maker.contract.ops[op]):
            case = maker.case(op, *plainest)
            longer = replace(case.tensors[0].spec, shape=(CHUNK[0] + 1,))
            yield replace(case, tensors=(replace(case.tensors[0], overrides=((1, longer),)),), illegal="shape")


def _seen(runner: Runs, case: Case) -> str:
    outcome = runner.run(case)
    ends = [
        first_line(seen) if seen.status is Ended.RAISED else " ".join(seen.routes) or str(seen.status)
        for seen in outcome.observations
    ]
    return _line(" / ".join(dict.fromkeys(ends)))


_VARIES: Final = re.compile(r"[DIWEF]\d{4} \d\d:\d\d:\d\d\.\d+ | at 0x[0-9a-f]+|:\d+\$\d+")
"""What differs in every run: glog's severity, date and time, where a Python object lies, and gloo's ports."""


def _line(text: str) -> str:
    """One short line, fit for a table and the same in every run."""
    plain = "".join(letter if letter.isprintable() else "?" for letter in " ".join(_VARIES.sub("", text).split()))
    return plain[:300].replace("|", "\\|")


_SYMBOLS: Final = {
    Status.RIGHT: "+",
    Status.WRONG: "**X**",
    Status.REFUSED: "-",
    Status.RUNS: "~",
    Status.BADLY: "!",
    Status.LOST: "?",
    Status.NEVER_RUN: "never run",
}
_LEGEND: Final = """\
Each cell is one small program. What the contract lists: `+` every element is one that it allows; `-` refused on every
rank that can know of it, as it allows; `**X**` neither. In parentheses is what it does not list, which is no failure
unless a cited promise is broken: `(-)` refused; `(~)` runs; `(!)` refused badly (a crash, a hang, changed tensors, or
some ranks raised). `?` lost: the environment failed. Empty: there is nothing to try. `never run`: with its reason.
"""


def markdown(matrix: Matrix) -> str:
    """The matrix as a page: the same text for the same verdicts and versions."""
    lines = [f"# {matrix.backend}", "", f"{matrix.summary}.", ""]
    if matrix.reason:
        lines += [f"Never run: {matrix.reason}.", ""]
    else:
        lines += [f"Versions: {', '.join(f'{name} {version}' for name, version in matrix.versions)}.", ""]
    lines += [f"`cclfuzz backends --check {matrix.backend}` writes this page.", "", _LEGEND]
    for table in dict.fromkeys(cell.table for cell in matrix.cells):
        lines += _table(table, [cell for cell in matrix.cells if cell.table == table])
    lines += _flags(matrix.effects)
    if not matrix.reason:
        lines += _notes(matrix.cells)
    return "\n".join(lines).rstrip() + "\n"


def _symbol(status: Status, declared: bool) -> str:
    return _SYMBOLS[status] if declared or status is Status.NEVER_RUN else f"({_SYMBOLS[status]})"


def _table(name: str, cells: list[Cell]) -> list[str]:
    columns = list(dict.fromkeys(cell.column for cell in cells))
    if name == FORM_TABLE:
        known = (PLAIN, ASYNC, UNEVEN, STACKED, PERMUTED, ALONE)
        columns.sort(key=lambda column: known.index(column) if column in known else len(known))
    text = {(cell.row, cell.column): _symbol(cell.status, cell.declared) for cell in cells}
    lines = [f"## {name}", "", f"| | {' | '.join(columns)} |", f"|{' --- |' * (len(columns) + 1)}"]
    for row in dict.fromkeys(cell.row for cell in cells):
        lines.append(f"| {row} | {' | '.join(text.get((row, column), '') for column in columns)} |")
    return [*lines, ""]


def _flags(effects: Iterable[Effect]) -> list[str]:
    lines = [
        f"| {one.flag} | {one.scope} | {', '.join(one.tried) or 'never run'} | "
        f"{one.seen or ('no effect seen' if one.tried else '')} |"
        for one in effects
    ]
    return (
        ["## Flags", "", "| flag | read | tried | effect |", "| --- | --- | --- | --- |", *lines, ""] if lines else []
    )


def _notes(cells: Iterable[Cell]) -> list[str]:
    """Reasons, and the cells that share each. Of what is wrong, which differs by its data, the first of each kind and
    collective; of refusals, which are many, how many.
    """
    shared: dict[tuple[str, ...], list[Cell]] = {}
    for cell in cells:
        if cell.reason:
            what: tuple[str, ...] = (cell.reason,)
            if cell.status is Status.WRONG:
                what = (cell.table, cell.row.split()[0], cell.reason.partition(":")[0])
            shared.setdefault((_symbol(cell.status, cell.declared), *what), []).append(cell)
    lines = []
    for group in sorted(shared.values(), key=lambda group: list(Status).index(group[0].status)):
        first = group[0]
        where = _places(group) if first.status is not Status.REFUSED else f"{len(group)} cells"
        lines.append(f"- {_symbol(first.status, first.declared)} {first.status}: {first.reason.rstrip('.')}. {where}.")
    return ["## Reasons", "", *lines, ""] if lines else []


def _places(cells: Iterable[Cell]) -> str:
    rows: dict[str, list[str]] = {}
    for cell in cells:
        view = f" ({cell.table.lower()})" if cell.table in (INPUT_TABLE, OUTPUT_TABLE) else ""
        rows.setdefault(cell.row + view, []).append(cell.column)
    return "; ".join(f"{row}: {', '.join(columns)}" for row, columns in rows.items())
