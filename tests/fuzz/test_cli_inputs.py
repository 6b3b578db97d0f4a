"""A wrong command or a wrong input is one line on the standard error, and exit status 2."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from corpus.case import Call, Case, Tensor, TensorSpec, World
from corpus.codec import to_dict
from fuzz import cli


def a_case() -> Case:
    call = Call("all_reduce", ("x",), ("x",), reduce_op="sum")
    return Case("gloo", World(2), (Tensor("x", TensorSpec((3,))),), (call,))


def cclfuzz(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    """Run the command in this process and return its exit status."""
    monkeypatch.setattr(sys, "argv", ["cclfuzz", *arguments])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    code = ended.value.code
    assert code is None or isinstance(code, int)
    return code or 0


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (
            ["run", "--backend", "carrier-pigeon"],
            "backend 'carrier-pigeon': one of gloo, dtensor, functional, mpich, nccl",
        ),
        (["run", "--world", "two"], "world 'two': sizes such as 2,3"),
        (["run", "--world", "0"], "world '0': 1 to 64 ranks"),
        (["run", "--world", "65"], "world '65': 1 to 64 ranks"),
        (["run", "--time", "soon"], "time 'soon'"),
        (["run", "--time", "0s"], "time '0s'"),
        (["run", "--memory", "plenty"], "size 'plenty'"),
        (["run", "--flag", "X"], "flag 'X': NAME=VALUE"),
        (["run", "--flag", "X=1"], "flag X: gloo has TORCH_DISTRIBUTED_DEBUG"),
        (["run", "--fault", "gremlins"], "fault 'gremlins': gloo can be given"),
        (["run", "--op", "all_sing"], "all_sing"),
        (["run", "--dtype", "float37"], "float37"),
        (["run", "--op", "gather", "--dtype", "complex64"], "gather"),
        (["run", "--layout", "sideways"], "sideways"),
        (["run", "--examples", "0"], "--examples"),
        (["run", "--nope"], "--nope"),
        (["frobnicate"], "frobnicate"),
        (["replay", "nowhere.json"], "nowhere.json: no such file"),
        (["export", "nowhere"], "nowhere: no such file"),
        (["export", "nowhere", "--format", "pdf"], "format 'pdf': script, pytest or json"),
    ],
)
def test_a_wrong_command_is_one_line_and_status_2(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    arguments: list[str],
    says: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cclfuzz(monkeypatch, *arguments) == 2
    error = capsys.readouterr().err
    assert says in error
    assert error.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_a_backend_without_its_hardware_says_what_is_missing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    if Path("/proc/driver/nvidia/gpus").exists():
        pytest.skip("this machine has NVIDIA GPUs")
    monkeypatch.chdir(tmp_path)
    assert cclfuzz(monkeypatch, "run", "--backend", "nccl") == 2
    assert "nccl is not available: no NVIDIA GPU on this machine" in capsys.readouterr().err


def refused(text: bytes) -> tuple[str, bytes]:
    return text.decode("latin-1")[:24], text


HOSTILE = [
    b"",
    b"\x00\x01\x02",
    b"\xff\xfe{",
    b"{",
    b"[" * 5000,
    b'{"cclfuzz": 1',
    json.dumps({**to_dict(a_case()), "seed": 10**400}).encode(),
    json.dumps({**to_dict(a_case()), "exec": "import os"}).encode(),
    json.dumps({**to_dict(a_case()), "mode": "compiled"}).encode(),
    json.dumps({**to_dict(a_case()), "backend": "../../etc/passwd"}).encode(),
    json.dumps({**to_dict(a_case()), "fault": "gremlins"}).encode(),
    json.dumps({**to_dict(a_case()), "backend": "\x1b[2J\n\nfake"}).encode(),
    json.dumps({**to_dict(a_case()), "tensors": [{"name": "x", "spec": {"shape": [1 << 39]}}]}).encode(),
    json.dumps({**to_dict(a_case()), "tensors": [{"name": "x", "spec": {"shape": [4], "memory": "cuda"}}]}).encode(),
    json.dumps(
        {
            **to_dict(a_case()),
            "tensors": [{"name": name, "spec": {"shape": [3]}} for name in ("x", "y")],
            "program": [{"op": "all_reduce", "inputs": ["x"], "outputs": ["y"], "reduce_op": "sum"}],
        }
    ).encode(),
    b"cos\nsystem\n(S'true'\ntR.",
]


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_a_hostile_case_file_is_one_line_and_status_2(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path, text: bytes
) -> None:
    (tmp_path / "case.json").write_bytes(text)
    assert cclfuzz(monkeypatch, "replay", str(tmp_path / "case.json")) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("cclfuzz: ")
    assert captured.err.count("\n") == 1
    assert captured.err.rstrip("\n").isprintable()
    assert len(captured.err) < 600


def test_a_folder_that_cannot_be_made_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    assert cclfuzz(monkeypatch, "run", "--out", str(tmp_path / "file" / "runs")) == 2
    assert capsys.readouterr().err == f"cclfuzz: --out {tmp_path}/file/runs: Not a directory\n"


def test_a_finding_without_failures_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    hollow = {"cclfuzz_finding": 1, "key": "k", "case": to_dict(a_case()), "failures": []}
    (tmp_path / "finding.json").write_text(json.dumps(hollow))
    assert cclfuzz(monkeypatch, "export", str(tmp_path)) == 2
    assert "at least one failure" in capsys.readouterr().err


def test_what_is_no_file_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert cclfuzz(monkeypatch, "replay", str(tmp_path / "pipe")) == 2
    assert "not a file" in capsys.readouterr().err
    (tmp_path / "empty").mkdir()
    assert cclfuzz(monkeypatch, "replay", str(tmp_path / "empty")) == 2
    assert "no case file in this folder" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "size"),
    [("1", 1), ("4096", 4096), ("1KiB", 1024), ("512MiB", 512 << 20), ("1GiB", 1 << 30), ("2g", 2 << 30)],
)
def test_sizes(text: str, size: int) -> None:
    assert cli.parse_size(text) == size


@pytest.mark.parametrize(("text", "seconds"), [("90", 90), ("60s", 60), ("1.5m", 90), ("2h", 7200)])
def test_times(text: str, seconds: float) -> None:
    assert cli.parse_time(text) == seconds
