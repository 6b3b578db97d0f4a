"""The commands as a person uses them, on real ranks, with one finding of a released library at hand."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from corpus.case import Call, Case, Layout, Tensor, TensorSpec, World
from corpus.codec import dumps
from fuzz import cli
from fuzz.campaign import Budget
from fuzz.finding import load_case, load_finding
from fuzz.ranks.cluster import Cluster
from fuzz.runner import Outcome, Runner
from fuzz.session import Session, fuzz
from oracles.judge import Judgement

released = pytest.mark.skipif(
    not torch.__version__.startswith("2.13."), reason=f"written for torch 2.13, this is {torch.__version__}"
)


@pytest.fixture
def shared(runner: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands in this process use the tests' ranks instead of a cluster of their own."""

    class Shared:
        def __init__(self, **options: object) -> None:
            del options

        def __enter__(self) -> Runner:
            return runner

        def __exit__(self, *error: object) -> None:
            pass

    monkeypatch.setattr("fuzz.session.Runner", Shared)
    monkeypatch.setattr("fuzz.runner.Runner", Shared)


def cclfuzz(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["cclfuzz", *arguments])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code is None or isinstance(ended.value.code, int)
    return ended.value.code or 0


@pytest.fixture(scope="module")
def finding(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finding: gloo's strided all_reduce."""
    out = tmp_path_factory.mktemp("found")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fuzz.session.Runner", lambda **options: Runner(cluster=cluster))
        session = Session("gloo", (2,), Budget(examples=60), ops=("all_reduce",), dtypes=("float32",), out=out)
        assert fuzz(session).findings >= 1
    (folder,) = out.glob("*/findings/gloo-all_reduce-wrong-result-strided")
    return folder


@released
def test_a_finding_is_a_folder_with_everything(finding: Path) -> None:
    assert {path.name for path in finding.iterdir()} == {
        "case.json",
        "finding.json",
        "finding.md",
        "repro.py",
        "test_repro.py",
    }
    page = (finding / "finding.md").read_text()
    for part in (
        "## Smallest program",
        "strides (2,)",
        "| observed | legal |",
        "## Variations",
        "passes for contiguous",
    ):
        assert part in page
    assert "repro.py was run once, alone, on this machine, and showed the bug." in page
    assert f"torch {torch.__version__}" in page
    assert load_finding(finding).case == load_case(finding)


@released
def test_the_repro_runs_without_us(finding: Path, tmp_path: Path) -> None:
    script = tmp_path / "repro.py"
    script.write_text((finding / "repro.py").read_text())
    # -I: isolated from our folder and from PYTHONPATH.
    ran = subprocess.run([sys.executable, "-I", str(script)], capture_output=True, text=True, timeout=120, check=False)
    assert ran.returncode == 1
    assert "expected" in ran.stdout
    for ours in ("cclfuzz", "corpus", "oracles", "strategies"):
        assert ours not in script.read_text()


@released
def test_replay_fails_on_the_finding_and_passes_on_the_contiguous_case(
    shared: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], finding: Path, tmp_path: Path
) -> None:
    assert cclfuzz(monkeypatch, "replay", str(finding)) == 1
    assert "FAILS" in capsys.readouterr().out
    call = Call("all_reduce", ("x",), ("x",), reduce_op="sum")
    (tmp_path / "fine.json").write_text(dumps(Case("gloo", World(2), (Tensor("x", TensorSpec((2,))),), (call,))))
    assert cclfuzz(monkeypatch, "replay", str(tmp_path / "fine.json")) == 0
    assert capsys.readouterr().out.startswith("ok ")


@released
@pytest.mark.parametrize("form", ["script", "pytest", "json"])
def test_export_prints_the_files_of_the_finding(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], finding: Path, form: str
) -> None:
    assert cclfuzz(monkeypatch, "export", str(finding), "--format", form) == 0
    written = {"script": "repro.py", "pytest": "test_repro.py", "json": "case.json"}[form]
    assert capsys.readouterr().out == (finding / written).read_text()


def test_a_clean_run_is_status_0(
    shared: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    arguments = ["--op", "broadcast", "--layout", "contiguous", "--world", "2", "--examples", "20"]
    assert cclfuzz(monkeypatch, "run", *arguments, "--out", str(tmp_path)) == 0
    assert "ran 20 cases" in capsys.readouterr().out
    (record,) = tmp_path.glob("*/events.jsonl")
    events = [json.loads(line) for line in record.read_text().splitlines()]
    assert [event["event"] for event in events] == ["Started", *["CaseRun"] * 20, "Finished"]


def test_a_run_without_verdicts_is_status_3(
    shared: None, monkeypatch: pytest.MonkeyPatch, runner: Runner, tmp_path: Path
) -> None:
    def lose(case: Case) -> Outcome:
        return Outcome(case, (), Judgement(lost="rank 0: the supervisor is gone"), 0.0)

    monkeypatch.setattr(runner, "run", lose)
    assert cclfuzz(monkeypatch, "run", "--op", "barrier", "--examples", "2", "--out", str(tmp_path)) == 3


@released
def test_what_failed_before_is_tried_first(shared: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    arguments = ["--op", "all_reduce", "--dtype", "float32", "--world", "2", "--out", str(tmp_path)]
    assert cclfuzz(monkeypatch, "run", *arguments, "--examples", "60") == 1
    assert cclfuzz(monkeypatch, "run", *arguments, "--examples", "1", "--seed", "1") == 1
    last = max(tmp_path.glob("*/events.jsonl"))
    phases = [json.loads(line).get("phase") for line in last.read_text().splitlines()]
    assert "reuse" in phases


def test_backends_says_what_is_missing(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert cclfuzz(monkeypatch, "backends") == 0
    output = capsys.readouterr().out
    for name in ("gloo", "nccl", "vllm-model"):
        assert f"{name}: " in output
    if not Path("/proc/driver/nvidia/gpus").exists():
        assert "not available: no NVIDIA GPU on this machine" in output


def test_the_facade_is_lazy() -> None:
    code = "import sys, cclfuzz; assert not {'ray', 'torch', 'hypothesis'} & set(sys.modules), sorted(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_the_two_lines_of_the_readme(runner: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    import hypothesis

    from cclfuzz import cases, check
    from oracles.failure import Failure

    monkeypatch.setattr("fuzz.api._runner", lambda: runner)

    @hypothesis.seed(0)
    @hypothesis.settings(
        max_examples=30, database=None, deadline=None, suppress_health_check=list(hypothesis.HealthCheck)
    )
    @hypothesis.given(case=cases(backend="gloo", world=2, ops=("all_reduce",), layouts="contiguous"))
    def fine(case: Case) -> None:
        check(case)

    fine()

    strided = TensorSpec((2,), layout=Layout((2,)))
    call = Call("all_reduce", ("x",), ("x",), reduce_op="sum")
    with pytest.raises((Failure, ExceptionGroup)):
        check(Case("gloo", World(2), (Tensor("x", strided),), (call,)))
