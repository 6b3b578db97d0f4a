"""Scripts run for real: alone, under torchrun, as a test; and what they do about crashes, hangs and Ctrl-C."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from repro_cases import failure, op_case, vllm_case
from running import Forked, Raw, environment, run

from corpus.case import Layout
from fuzz.repro.pytest_file import pytest_file
from fuzz.repro.script import script

STRIDED = op_case("all_reduce", (3,), layout=Layout(strides=(2,)))
RIGHT = op_case("all_reduce", (3,))
FAILURES = [failure("wrong result", tensor="x"), failure("neighbours changed", tensor="x")]


def test_the_live_bug_of_gloo(tmp_path: Path) -> None:
    done = run(tmp_path, script(STRIDED, FAILURES, title="strided"))
    assert done.returncode == 1, done.stdout + done.stderr
    assert "x is wrong\n  observed [3.0, 7.0, 5.0]\n  expected [3.0, 7.0, 11.0]" in done.stdout
    assert "the memory around x is wrong" in done.stdout


@pytest.mark.parametrize("faithful", [False, True])
@pytest.mark.parametrize("payload", ["index", "wide", "special"])
def test_the_live_bug_of_gloo_at_size(tmp_path: Path, forked: Forked, payload: str, faithful: bool) -> None:
    case = op_case("all_reduce", (20_000,), world=3, layout=Layout(strides=(2,)), payload=payload)
    done = forked(tmp_path, script(case, FAILURES, title="strided", faithful=faithful))
    assert done.returncode == 1, done.stdout + done.stderr
    assert "observed" in done.stdout
    assert "expected" in done.stdout


def test_the_live_bug_of_gloo_under_torchrun(tmp_path: Path) -> None:
    launcher = ("-m", "torch.distributed.run", "--nproc-per-node", "2")
    done = run(tmp_path, script(STRIDED, FAILURES, title="strided"), *launcher)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "rank 0: x is wrong" in done.stdout
    assert "rank 1: x is wrong" in done.stdout
    assert "exitcode  : 1" in done.stderr


@pytest.mark.parametrize("op", ["all_reduce", "all_to_all_single"])
def test_a_right_call(tmp_path: Path, forked: Forked, op: str) -> None:
    kinds = ("wrong result", "input changed", "ranks disagree" if op == "all_reduce" else "crash")
    case = op_case(op, (4, 2), world=3, group=(2, 0), async_op=True, payload="wide")
    done = forked(tmp_path, script(case, [failure(kind, op=op) for kind in kinds], title="right"))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "is right" in done.stdout


@pytest.mark.parametrize(("fault", "status"), [("inplace-above-threshold", 1), (None, 0)])
def test_the_model_of_vllm(tmp_path: Path, forked: Forked, fault: str | None, status: int) -> None:
    failures = [failure("input changed", tensor="x"), failure("output aliases input", tensor="y")]
    done = forked(tmp_path, script(vllm_case(4_194_304, fault=fault), failures, title="in place"))
    assert done.returncode == status, done.stdout + done.stderr
    assert ("y shares the memory of x" in done.stdout) == bool(status)


def test_a_crash_is_reported(tmp_path: Path, forked: Forked) -> None:
    crash = Raw("if rank == 1:", "    os.kill(os.getpid(), signal.SIGSEGV)", "dist.all_reduce(x)")
    done = forked(tmp_path, script(RIGHT, [failure("crash")], title="crash", written_by=crash))
    assert done.returncode == 1, done.stdout + done.stderr
    assert "rank 1 was killed by SIGSEGV" in done.stdout


def test_a_hang_is_reported(tmp_path: Path, forked: Forked) -> None:
    hang = Raw("if rank == 0:", "    dist.all_reduce(x)", "else:", "    time.sleep(3600)")
    text = script(RIGHT, [failure("hang")], title="hang", written_by=hang).replace("DEADLINE = 30", "DEADLINE = 1")
    done = forked(tmp_path, text)
    assert done.returncode == 1, done.stdout + done.stderr
    assert done.stderr.count("Timeout (") == 2
    assert "in run" in done.stderr


@pytest.mark.parametrize(("kind", "status"), [("refused", 1), ("wrong result", 2)])
def test_a_call_that_raises(tmp_path: Path, forked: Forked, kind: str, status: int) -> None:
    raises = Raw('raise RuntimeError("not supported")', "x = dist")
    done = forked(tmp_path, script(RIGHT, [failure(kind)], title="raises", written_by=raises))
    assert done.returncode == status, done.stdout + done.stderr
    assert "RuntimeError: not supported" in done.stdout + done.stderr


def test_the_pytest_file(tmp_path: Path) -> None:
    (tmp_path / "test_right.py").write_text(pytest_file(RIGHT, FAILURES, title="gloo: all_reduce is right"))
    text = pytest_file(STRIDED, FAILURES, title="gloo: all_reduce of a strided view is wrong")
    options = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(tmp_path), "test_right.py")
    done = run(tmp_path, text, *options, name="test_repro.py")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "1 failed, 1 passed" in done.stdout
    assert "FAILED test_repro.py::test_gloo_all_reduce_of_a_strided_view_is_wrong" in done.stdout
    assert "x is wrong" in done.stdout


def test_ctrl_c_leaves_no_rank(tmp_path: Path) -> None:
    # One write: print may take two, and then the lines of two ranks mix.
    hang = Raw(r'os.write(1, b"ready\n")', "time.sleep(3600)")
    text = script(replace(RIGHT, seed=1), [failure("hang")], title="hang", written_by=hang)
    (tmp_path / "repro.py").write_text(text)
    command = [sys.executable, "repro.py"]
    with subprocess.Popen(
        command,
        cwd=tmp_path,
        env=environment(tmp_path),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    ) as process:
        assert process.stdout is not None
        ready = 0
        while ready < 2:
            line = process.stdout.readline()
            assert line, "the script ended"
            ready += line == "ready\n"
        assert len(session(process.pid)) == 3
        process.send_signal(signal.SIGINT)  # to the parent alone: a terminal sends it to every rank too
        process.wait(20)
        for _ in range(100):
            if not session(process.pid):
                break
            time.sleep(0.1)
        assert session(process.pid) == []
    assert list((tmp_path / "tmp").iterdir()) == []


def session(leader: int) -> list[int]:
    """Processes of a session that still run (zombies do not)."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[3]) == leader and fields[0] != "Z":
            found.append(int(stat.parent.name))
    return found
