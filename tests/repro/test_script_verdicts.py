"""What scripts say: nothing of a right library, and something of one that does nothing or spills over."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from program_cases import chains, related
from repro_cases import Entry, entries

from fuzz.repro.script import script

WORLDS = Path(__file__).with_name("worlds.py")
UNRUN = {"refused", "raised on some ranks", "hang", "crash", "stopped"}
ENTRIES = [*entries(), *chains(), *related()]
ENTRIES = [entry for entry in ENTRIES if entry.case.world.size <= 4 and not UNRUN & set(entry.kinds)]


def verdicts(mode: str, chosen: list[Entry], folder: Path) -> dict[str, list[str]]:
    """What every rank's `run` returns, by an entry's name."""
    names = {}
    for index, entry in enumerate(chosen):
        names[f"{index:04}.py"] = entry.name
        (folder / f"{index:04}.py").write_text(script(entry.case, entry.failures, title=entry.name))
    command = [sys.executable, "-W", "ignore", str(WORLDS), str(folder), mode]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    return {names[file]: found for file, found in json.loads(done.stdout).items()}


def test_a_right_library_is_right(tmp_path: Path) -> None:
    wrong_there = {"buffers", "vllm-model in place"}
    chosen = [e for e in ENTRIES if e.case.backend != "nccl" and e.name not in wrong_there]
    reductions = [e for e in chosen if " at " in e.name]
    chosen = [e for e in chosen if " at " not in e.name] + reductions[::5]
    found = verdicts("dense", chosen, tmp_path)
    assert len(found) == len(chosen)
    assert {name: said for name, said in found.items() if set(said) != {"right"}} == {}


def test_chains_over_gloo_are_right(tmp_path: Path) -> None:
    """Works that are waited for later, late ranks, permuted and twin groups, on the real library."""
    chosen = [entry for entry in (*chains(), *related()) if entry.name != "chain of views"]
    found = verdicts("gloo", chosen, tmp_path)
    assert {name: said for name, said in found.items() if set(said) != {"right"}} == {}


def test_a_library_that_does_nothing_is_wrong(tmp_path: Path) -> None:
    def writes(entry: Entry) -> bool:
        call = entry.case.program[0]
        empty = any(spec.numel == 0 for _, spec in entry.case.specs())
        return call.op != "barrier" and not empty and "wrong result" in entry.kinds

    chosen = [e for e in ENTRIES if writes(e)][::4]
    found = verdicts("idle", chosen, tmp_path)
    assert {name: said for name, said in found.items() if not any(text.startswith("wrong") for text in said)} == {}


def test_a_library_that_spills_is_wrong(tmp_path: Path) -> None:
    spills = ("guarded", "offset", "scalar", "every", "column", "rows of", "strided", "doubled", "and transposed")
    chosen = [e for e in ENTRIES if e.name.startswith("layout ") and any(word in e.name for word in spills)]
    assert len(chosen) > 20
    found = verdicts("spilling", chosen, tmp_path)
    assert {name: said for name, said in found.items() if not any("the memory around" in text for text in said)} == {}


def test_other_kinds_are_seen(tmp_path: Path) -> None:
    chosen = [entry for entry in ENTRIES if entry.name in ("buffers", "vllm-model in place")]
    found = verdicts("gloo", chosen, tmp_path)
    assert len(found) == 2
    assert all(any(text.startswith("wrong") for text in said) for said in found.values())
