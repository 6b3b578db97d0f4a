"""The contract, cell by cell: what a cell shows, and the page that tells it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from corpus.case import Case, CaseError
from corpus.contract import Contract
from corpus.flags import Flag, Scope
from fuzz.backends import UnknownBackend, load
from fuzz.backends.base import Backend
from fuzz.backends.gloo import Gloo
from fuzz.conformance import (
    DTYPE_TABLE,
    FORM_TABLE,
    OUTPUT_TABLE,
    Cell,
    Effect,
    Matrix,
    Status,
    Trial,
    check,
    effects,
    markdown,
    plan,
    settle,
)
from fuzz.runner import Outcome, Runner


def trial(backend: Backend, table: str, row: str, column: str) -> Trial:
    """The one trial of this cell."""
    (found,) = [
        each
        for each in plan("gloo", backend)
        if (each.cell.table, each.cell.row, each.cell.column) == (table, row, column)
    ]
    return found


class Seeded:
    """Runs every case with a fault."""

    def __init__(self, runner: Runner, fault: str) -> None:
        self._runner = runner
        self._fault = fault

    def backend(self, name: str) -> Backend:
        return self._runner.backend(name)

    def run(self, case: Case) -> Outcome:
        return self._runner.run(replace(case, fault=self._fault))


def test_a_declared_dtype_is_right(runner: Runner) -> None:
    cell, outcome = settle(runner, trial(Gloo(), DTYPE_TABLE, "all_reduce sum", "float64"))
    assert (cell.declared, cell.status, cell.reason) == (True, Status.RIGHT, "")
    assert outcome is not None


def test_a_wrong_declared_dtype_is_reported(runner: Runner) -> None:
    seeded = Seeded(runner, "wrong-all_reduce")
    cell, _ = settle(seeded, trial(Gloo(), DTYPE_TABLE, "all_reduce sum", "float64"))
    assert cell.status is Status.WRONG
    assert cell.reason.startswith("wrong result: all_reduce sum of float64")


def test_a_refused_declared_dtype_is_reported(runner: Runner) -> None:
    seeded = Seeded(runner, "refuses-float64")
    cell, _ = settle(seeded, trial(Gloo(), DTYPE_TABLE, "all_reduce sum", "float64"))
    assert cell.status is Status.WRONG
    assert cell.reason.startswith("refused: all_reduce")


class Narrow(Gloo):
    """Promises one dtype fewer than gloo takes."""

    def contract(self, flags: object) -> Contract:
        whole = super().contract({})
        broadcast = whole.ops["broadcast"]
        fewer = tuple(name for name in broadcast.dtypes if name != "float64")
        return replace(whole, ops={**whole.ops, "broadcast": replace(broadcast, dtypes=fewer)})


def test_an_undeclared_dtype_that_runs_is_noted(runner: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(runner._backends, "gloo", Narrow())
    cell, _ = settle(runner, trial(Narrow(), DTYPE_TABLE, "broadcast", "float64"))
    assert (cell.declared, cell.status) == (False, Status.RUNS)
    assert Matrix("gloo", "", (cell,)).exit_status == 0


def test_an_undeclared_dtype_that_raises_is_refused(runner: Runner) -> None:
    cell, _ = settle(runner, trial(Gloo(), DTYPE_TABLE, "broadcast", "int16"))
    assert (cell.status, cell.reason) == (Status.REFUSED, "RuntimeError: Invalid scalar type")


def test_a_view_that_the_contract_lets_be_refused(runner: Runner) -> None:
    cell, _ = settle(runner, trial(Gloo(), OUTPUT_TABLE, "send_recv", "step"))
    assert (cell.declared, cell.status) == (True, Status.REFUSED)


def test_every_view_stands_in_the_case() -> None:
    views = [each for each in plan("gloo", Gloo()) if each.cell.table == OUTPUT_TABLE]
    assert all(any(tensor.spec.layout.before for tensor in each.case.tensors) for each in views)


@pytest.mark.parametrize("name", ["gloo", "functional", "threaded", "ray", "mpich", "vllm-model", "nccl"])
def test_every_line_of_the_contract_has_a_cell(name: str) -> None:
    contract = load(name).contract({})
    cells = [each.cell for each in plan(name, load(name))]
    declared = {(cell.row, cell.column) for cell in cells if cell.table == DTYPE_TABLE and cell.declared}
    assert declared == {
        (f"{op} {reduce_op}" if reduce_op else op, dtype)
        for op, promise in contract.ops.items()
        for reduce_op, dtypes in [(None, promise.dtypes), *promise.reduce_ops.items()]
        for dtype in dtypes
    }
    assert {cell.row for cell in cells if cell.table == FORM_TABLE} == set(contract.ops)


def test_a_flag_is_proven_by_its_route(runner: Runner) -> None:
    in_place, packed = effects(runner, "vllm-model")
    assert in_place == Effect(
        "VLLM_INPLACE_AR_MIN",
        "call",
        ("0", "1"),
        "all_reduce: pynccl:in-place with 1, and not without",
    )
    assert packed.seen == in_place.seen


def test_a_flag_that_changes_nothing_is_not_proven(runner: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    idle = load("vllm-model")
    idle.flags = (Flag("VLLM_INPLACE_AR_MIN", ("zero",), Scope.CALL, "a test"),)  # type: ignore[misc]
    monkeypatch.setattr(idle, "contract", lambda flags: type(idle)().contract({}))
    monkeypatch.setattr("fuzz.conformance._seen", lambda runner, case: "pynccl")
    monkeypatch.setitem(runner._backends, "vllm-model", idle)
    assert effects(runner, "vllm-model") == (Effect("VLLM_INPLACE_AR_MIN", "call", ("zero",), ""),)


def test_what_is_not_available_has_never_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fuzz.backends.gloo.Gloo.unavailable", lambda self: "no gloo today")
    matrix = check("gloo")
    assert {(cell.status, cell.reason) for cell in matrix.cells} == {(Status.NEVER_RUN, "no gloo today")}
    assert matrix.exit_status == 3
    assert "Never run: no gloo today." in markdown(matrix)


def test_an_unknown_backend() -> None:
    with pytest.raises(UnknownBackend):
        check("no-such-library")


CELLS = (
    Cell(DTYPE_TABLE, "all_reduce sum", "float32", True, Status.RIGHT),
    Cell(DTYPE_TABLE, "all_reduce sum", "int16", False, Status.REFUSED, "RuntimeError: Invalid scalar type"),
    Cell(DTYPE_TABLE, "all_reduce sum", "bool", False, Status.RUNS, "the result is wrong"),
    Cell(DTYPE_TABLE, "all_reduce avg", "float32", True, Status.WRONG, "wrong result: 1, legal is 2"),
    Cell(FORM_TABLE, "all_reduce", "1 rank", True, Status.LOST, "the world did not open"),
    Cell(FORM_TABLE, "all_reduce", "plain", True, Status.RIGHT),
)

PAGE = """\
## Dtypes

| | float32 | int16 | bool |
| --- | --- | --- | --- |
| all_reduce sum | + | (-) | (~) |
| all_reduce avg | **X** |  |  |

## Forms

| | plain | 1 rank |
| --- | --- | --- |
| all_reduce | + | ? |

## Flags

| flag | read | tried | effect |
| --- | --- | --- | --- |
| FAST | call | 1 | no effect seen |

## Reasons

- **X** WRONG: wrong result: 1, legal is 2. all_reduce avg: float32.
- (-) refused: RuntimeError: Invalid scalar type. 1 cells.
- (~) runs: the result is wrong. all_reduce sum: bool.
- ? lost: the world did not open. all_reduce: 1 rank.
"""


def test_the_page() -> None:
    page = markdown(Matrix("toy", "a toy", CELLS, (Effect("FAST", "call", ("1",)),), (("toy", "1.0"),)))
    assert page.startswith("# toy\n\na toy.\n\nVersions: toy 1.0.\n")
    assert page[page.index("## Dtypes") :] == PAGE


def test_a_reason_is_the_same_in_every_run() -> None:
    class Refuses:
        def run(self, case: Case) -> Outcome:
            raise CaseError("[rank0]:[F1207 11:03:55.693089662 group.cpp:1]\nnot\x01 that | <op at 0x7f00>")

    cell, _ = settle(Refuses(), trial(Gloo(), FORM_TABLE, "barrier", "plain"))  # type: ignore[arg-type]
    assert cell.reason == "[rank0]:[group.cpp:1] not? that \\| <op>"
    assert cell.status is Status.NEVER_RUN


@pytest.mark.parametrize(
    ("kept", "status"),
    [(CELLS, 1), (CELLS[:3], 0), (CELLS[4:], 3), ((replace(CELLS[0], status=Status.NEVER_RUN),), 3)],
)
def test_exit_status(kept: tuple[Cell, ...], status: int) -> None:
    assert Matrix("toy", "a toy", kept).exit_status == status
