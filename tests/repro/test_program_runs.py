"""Scripts of chains, relations, illegal programs and flaky bugs, run for real over gloo."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from program_cases import OUT, SUM, X, chain, disagreeing, illegal, related
from repro_cases import failure, op_case, spec
from running import Forked, Raw

from corpus.case import Call, Case, Tensor
from fuzz.repro.pytest_file import pytest_file
from fuzz.repro.script import script

RIGHT = op_case("all_reduce", (3,))


def twice(**layout: Any) -> Case:
    """A sum that is copied into another tensor, summed there again, and doubled."""
    program = (
        SUM,
        Call("copy", ("x",), ("y",)),
        replace(SUM, inputs=("y",), outputs=("y",)),
        Call("double", ("y",), ("y",)),
    )
    return chain(*program, x=spec((3,)), y=spec((3,), payload="poison", **layout))


def everything(case: Case) -> list[dict[str, Any]]:
    """A wrong result of every call."""
    return [failure("wrong result", call=index, op=call.op) for index, call in enumerate(case.program)]


def test_the_live_bug_of_gloo_in_a_chain(tmp_path: Path, forked: Forked) -> None:
    case = twice(strides=(2,))
    done = forked(tmp_path, script(case, everything(case)[:3], title="a strided sum in a chain"))
    assert done.returncode == 1, done.stdout + done.stderr
    assert "rank 0: y after copy is right" in done.stdout
    assert (
        "y after all_reduce 2 of 2 is wrong\n  observed [6.0, 14.0, 11.0]\n  expected [6.0, 14.0, 22.0]" in done.stdout
    )


def test_a_chain_that_is_right(tmp_path: Path, forked: Forked) -> None:
    case = twice()
    done = forked(tmp_path, script(case, everything(case), title="a dense sum in a chain"))
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("y after all_reduce 2 of 2 is right") == 2


REGIONS = {
    "coalesced": [replace(SUM, inputs=(name,), outputs=(name,), region=0, async_op=True) for name in ("x", "y")],
    "a batch": [
        Call("send_recv", ("x",), ("z",), root=0, peer=1, region=0),
        Call("send_recv", ("y",), ("z",), root=1, peer=0, region=0),
    ],
}


@pytest.mark.parametrize("name", REGIONS)
def test_a_region_that_is_right(name: str, tmp_path: Path, forked: Forked) -> None:
    calls = REGIONS[name]
    tensors = {"x": X, "y": X} if name == "coalesced" else {"x": X, "y": X, "z": OUT}
    case = chain(*calls, **tensors)
    done = forked(tmp_path, script(case, everything(case), title="a region"))
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("is right") == (4 if name == "coalesced" else 2)


def test_a_relation_that_holds(tmp_path: Path, forked: Forked) -> None:
    entry = next(entry for entry in related() if entry.name == "related prefix")
    done = forked(tmp_path, script(entry.case, entry.failures, title="a prefix"))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "x_2 beside x (prefix) is right" in done.stdout


def test_a_relation_that_does_not_hold(tmp_path: Path, forked: Forked) -> None:
    entry = next(entry for entry in related() if entry.name == "related prefix")
    wrong = Raw("dist.all_reduce(x)", "x_2.copy_(x[:4])", "x_2[3:] += 1")
    done = forked(tmp_path, script(entry.case, entry.failures, title="a prefix", written_by=wrong))
    assert done.returncode == 1, done.stdout + done.stderr
    assert "x_2 beside x (prefix) is wrong" in done.stdout


def test_an_illegal_program_that_is_accepted(tmp_path: Path, forked: Forked) -> None:
    done = forked(tmp_path, script(disagreeing(), [failure("silently accepted")], title="dtypes"))
    assert done.returncode == 1, done.stdout + done.stderr
    assert "rank 0: returned" in done.stdout
    assert "rank 1: returned" in done.stdout


def test_an_illegal_program_that_is_refused(tmp_path: Path, forked: Forked) -> None:
    kinds = ("silently accepted", "raised on some ranks", "hang", "tensors changed although it raised")
    failures = [failure(kind) for kind in (*kinds, "group unusable afterwards")]
    case = replace(RIGHT, tensors=(Tensor("x", spec((3,), "int16")),), illegal="unsupported dtype")
    done = forked(tmp_path, script(case, failures, title="an unsupported dtype"))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "rank 0: raised RuntimeError: Invalid scalar type" in done.stdout
    assert "rank 1: a legal all_reduce afterwards summed 2.0, expected 2" in done.stdout


def test_an_illegal_program_that_hangs(tmp_path: Path, forked: Forked) -> None:
    case = illegal("count", chain(SUM, x=X), (1, ()))
    text = script(case, [failure("hang")], title="a call too few").replace(
        "timedelta(seconds=5)", "timedelta(seconds=2)"
    )
    done = forked(tmp_path, text)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "rank 0: raised RuntimeError" in done.stdout
    assert "rank 1: returned" in done.stdout


def test_an_illegal_program_that_one_rank_refuses(tmp_path: Path, forked: Forked) -> None:
    lists = chain(Call("scatter", ("x0", "x1"), ("y",), root=0), x0=X, x1=X, y=OUT)
    bad = replace(lists, tensors=(lists.tensors[0], Tensor("x1", spec((3,))), lists.tensors[2]))
    failures = [failure("raised on some ranks", op="scatter")]
    text = script(illegal("shape", bad), failures, title="a list of two shapes")
    done = forked(tmp_path, text.replace("timedelta(seconds=5)", "timedelta(seconds=2)"))
    assert done.returncode == 1, done.stdout + done.stderr
    assert "rank 0: raised" in done.stdout


@pytest.mark.parametrize(("repeats", "status", "runs"), [(2, 0, 2), (9, 1, 3)])
def test_a_flaky_bug_is_tried_again(tmp_path: Path, forked: Forked, repeats: int, status: int, runs: int) -> None:
    third = Raw("run.number = getattr(run, 'number', 0) + 1", "dist.all_reduce(x)", "x += run.number // 3 * rank")
    text = script(RIGHT, [failure("wrong result")], title="flaky", written_by=third, repeats=repeats)
    done = forked(tmp_path, text)
    assert done.returncode == status, done.stdout + done.stderr
    assert done.stdout.count("rank 0: x is right") == runs
    assert ("rank 1: x is wrong" in done.stdout) == bool(status)


def test_the_pytest_file_tries_again_too() -> None:
    text = pytest_file(RIGHT, [failure("wrong result")], title="flaky", repeats=7)
    assert "for _ in range(7):" in text
