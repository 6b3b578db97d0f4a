"""What every script looks like: valid, tidy, short, and nothing of ours in it."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from program_cases import chains, illegals, related
from repro_cases import OUR_NAMES, Entry, entries, failure, op_case, spec, vllm_case

from corpus.case import Case, Layout, Tensor
from fuzz.repro.code import ReproError, fold
from fuzz.repro.dialects import Dialect, Names
from fuzz.repro.pytest_file import pytest_file
from fuzz.repro.script import script

ENTRIES = [*entries(), *chains(), *related(), *illegals()]
ELSEWHERE = Tensor("x", spec((3,)), ((1, replace(spec((3,)), memory="cuda")),))
RUFF = shutil.which("ruff", path=str(Path(sys.executable).parent)) or shutil.which("ruff")


def text(entry: Entry, *, faithful: bool = False) -> str:
    return script(entry.case, entry.failures, title=entry.name, faithful=faithful)


@pytest.fixture(scope="module")
def texts() -> dict[str, str]:
    """Every script, simple and faithful, and some pytest files."""
    found = {
        f"{entry.name}, faithful: {faithful}": text(entry, faithful=faithful)
        for entry in ENTRIES
        for faithful in (False, True)
    }
    for entry in ENTRIES[::20]:
        found[f"{entry.name}, pytest"] = pytest_file(entry.case, entry.failures, title=entry.name)
    return found


def test_compiles(texts: dict[str, str]) -> None:
    for name, code in texts.items():
        compile(code, name, "exec")


def test_lines_are_short(texts: dict[str, str]) -> None:
    assert [(name, line) for name, code in texts.items() for line in code.splitlines() if len(line) > 120] == []


def test_nothing_of_ours(texts: dict[str, str]) -> None:
    found = [(name, word) for name, code in texts.items() for word in OUR_NAMES if word in code.lower()]
    assert found == []


def test_imports_only_torch_and_the_standard_library(texts: dict[str, str]) -> None:
    imported = {
        module.split(".")[0] for code in texts.values() for module in re.findall(r"^(?:import|from) (\S+)", code, re.M)
    }
    assert imported - {"torch"} <= sys.stdlib_module_names


@pytest.mark.skipif(RUFF is None, reason="ruff is not installed")
def test_no_unused_names(texts: dict[str, str], tmp_path: Path) -> None:
    assert RUFF is not None
    for index, code in enumerate(texts.values()):
        (tmp_path / f"script_{index}.py").write_text(code)
    done = subprocess.run(
        [RUFF, "check", "--isolated", "--no-cache", "--select", "F,E9", "."],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-3000:]


def test_the_common_case_is_short() -> None:
    case = op_case("all_reduce", (3,), layout=Layout(strides=(2,)))
    code = script(case, [failure("wrong result"), failure("neighbours changed")], title="all_reduce of a view")
    assert sum(1 for line in code.splitlines() if line.strip()) <= 66
    assert "base = torch.full((5,), -1.0 - rank)\n    return base[::2].copy_(" in code


def test_every_script_is_short(texts: dict[str, str]) -> None:
    lengths = {name: code.count("\n") for name, code in texts.items() if name.endswith("faithful: False")}
    cases = {f"{entry.name}, faithful: False": entry.case for entry in ENTRIES}
    most = {name: 110 + 6 * (len(case.program) - 1) + 10 * bool(case.illegal) for name, case in cases.items()}
    assert {name: length for name, length in lengths.items() if length > most[name]} == {}
    assert sorted(lengths.values())[len(lengths) * 9 // 10] <= 100


@pytest.mark.parametrize(
    ("shape", "layout", "written"),
    [
        ((4,), Layout(before=1, after=2), "base[1:5]"),
        ((3,), Layout(strides=(2,)), "base[::2]"),
        ((3,), Layout(strides=(4,), before=1, after=2), "base[1::4]"),
        ((2, 3), Layout(strides=(5, 1), before=1, after=1), "base[:, 1:4]"),
        ((2, 3), Layout(strides=(1, 2)), "base.t()"),
        ((2, 3), Layout(strides=(6, 2)), "base[::2].view(2, 3)"),
        ((2, 2), Layout(strides=(7, 3), before=1), "base.as_strided((2, 2), (7, 3), 1)"),
        ((3,), Layout(strides=(0,)), "base.expand(3)"),
        ((3,), Layout(neg=True), "torch._neg_view(base)"),
    ],
)
def test_views_are_written_as_a_person_would(shape: tuple[int, ...], layout: Layout, written: str) -> None:
    case = op_case("all_gather", shape, layout=layout, output_layout=Layout())
    assert written in script(case, [failure("wrong result", op="all_gather")], title="views")


@pytest.mark.parametrize(
    ("op", "call", "written"),
    [
        ("all_reduce", {}, "dist.all_reduce(x)"),
        ("all_reduce", {"reduce_op": "max"}, "dist.all_reduce(x, op=dist.ReduceOp.MAX)"),
        ("all_reduce", {"async_op": True}, "dist.all_reduce(x, async_op=True).wait()"),
        ("reduce", {"world": 3, "group": (0, 2)}, "dist.reduce(x, dst=2, group=group)"),
        ("broadcast", {"root": 0}, "dist.broadcast(x, src=0)"),
        ("gather", {}, "dist.gather(x, outputs if rank == 1 else None, dst=1)"),
        ("scatter", {}, "dist.scatter(y, inputs if rank == 1 else None, src=1)"),
        ("all_gather_into_tensor", {}, "dist.all_gather_into_tensor(y, x)"),
        ("send_recv", {"async_op": True}, "dist.irecv(y, src=0).wait()"),
        ("all_to_all_single", {"splits": ((1, 2), (0, 3))}, "(y, x, [row[rank] for row in SPLITS], SPLITS[rank])"),
        ("barrier", {"async_op": True, "world": 3, "group": (2, 0)}, "dist.barrier(group=group, async_op=True).wait()"),
    ],
)  # fmt: skip
def test_calls_are_written_as_a_person_would(op: str, call: dict[str, object], written: str) -> None:
    case = op_case(op, (4,), **call)  # type: ignore[arg-type]
    assert written in script(case, [failure("wrong result", op=op)], title="calls")


def test_groups_keep_their_order() -> None:
    case = op_case("all_reduce", (4,), world=3, group=(2, 0))
    assert "dist.new_group([2, 0], sort_ranks=False)" in script(case, [failure("wrong result")], title="groups")


def test_gpu_scripts_use_every_ranks_gpu() -> None:
    case = op_case("all_reduce", (100,), payload="wide", backend="nccl")
    tensor = replace(case.tensors[0], spec=replace(case.tensors[0].spec, memory="cuda"))
    code = script(replace(case, tensors=(tensor,)), [failure("wrong result")], title="on GPUs")
    for line in ('"nccl"', "torch.cuda.set_device(rank", 'torch.set_default_device("cuda")', 'torch.Generator("cuda")'):
        assert line in code


def test_the_docstring_says_what_where_and_how() -> None:
    case = op_case("all_reduce", (3,))
    said = [failure("wrong result") | {"message": "x holds 5, not 7", "promise": "the documentation"}]
    code = script(case, said, title="gloo: all_reduce is wrong", versions=[("torch", "2.13.0")])
    head = code[: code.index("import")]
    for words in ("gloo: all_reduce is wrong", "x holds 5, not 7", "the documentation", "torch 2.13.0, gloo, 2 ranks"):
        assert words in head
    assert "torchrun --nproc-per-node 2 repro.py" in head


def test_a_hostile_message_stays_in_the_docstring() -> None:
    said = failure("wrong result") | {"message": '""" \\', "promise": '"""\nimport os\n"""'}
    code = script(op_case("all_reduce", (3,)), [said], title='"""\n1 / 0\n"""\\')
    compile(code, "hostile", "exec")
    assert "\n1 / 0" not in code
    assert code.count('"""') <= 4


def test_a_seeded_fault_is_named() -> None:
    case = replace(op_case("all_reduce", (3,)), fault="tail-not-written")
    assert "seeded fault 'tail-not-written'" in script(case, [failure("wrong result")], title="a fault")


def test_a_library_brings_its_own_dialect() -> None:
    class Mine(Dialect):
        def imports(self, case: Case) -> tuple[str, ...]:
            return ("import mine",)

        def call(self, case: Case, call: object, names: Names) -> list[str]:
            return [f"mine.reduce({names.inputs})"]

    case = replace(op_case("all_reduce", (3,)), backend="mine", flags=(("MINE_FAST", "1"),))
    code = script(case, [failure("wrong result")], title="mine", written_by=Mine())
    assert "\nimport mine\n" in code
    assert "    mine.reduce(x)\n" in code
    assert "os.environ[\"MINE_FAST\"] = '1'" in code


@pytest.mark.parametrize(
    ("case", "words"),
    [
        (replace(op_case("all_reduce", (3,)), backend="unknown"), "no dialect"),
        (replace(op_case("all_reduce", (3,)), mode="compiled"), "mode compiled"),
        (replace(op_case("all_reduce", (3,)), tensors=(ELSEWHERE,), illegal="device"), "one memory kind"),
        (replace(op_case("all_reduce"), tensors=(Tensor("x", replace(spec((3,)), memory="cpu_pinned")),)), "pinned"),
    ],
)  # fmt: skip
def test_what_cannot_be_written_is_refused(case: Case, words: str) -> None:
    with pytest.raises(ReproError, match=words):
        script(case, [failure("wrong result")], title="refused")


def test_what_a_fake_says_is_not_written() -> None:
    case = vllm_case(3)
    with pytest.raises(ReproError, match="fake shape differs: this version writes no fake tensors"):
        script(case, [failure("fake shape differs")], title="refused")
    both = script(case, [failure("fake shape differs"), failure("schema hides an alias")], title="an alias")
    assert "y shares the memory of x" in both


def test_a_schema_that_hides_a_write_shows_the_write() -> None:
    code = script(vllm_case(3), [failure("schema hides a write", tensor="x")], title="a write")
    assert 'return check(rank, "the input x", x, make_x(rank))' in code


def test_a_returned_tensor_goes_on() -> None:
    case = vllm_case(3)
    again = replace(case.program[0], inputs=("y",), outputs=("z",))
    case = replace(case, tensors=(*case.tensors, replace(case.tensors[1], name="z")), program=(*case.program, again))
    code = script(case, [failure("wrong result", call=1)], title="two calls")
    assert "    y = all_reduce(x)\n    z = all_reduce(y)\n" in code
    assert "    want_y = [sum(want_x)] * WORLD  # all_reduce 1 of 2\n" in code


def test_long_lines_are_broken_inside_brackets() -> None:
    line = "    x = torch.tensor([" + ", ".join(f"[{i}.25, {i}.5]" for i in range(40)) + "])"
    pieces = fold(line)
    assert max(map(len, pieces)) <= 120
    compile("\n".join(piece[4:] for piece in pieces), "folded", "exec")
