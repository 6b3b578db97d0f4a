"""Cases that failed on a released library are kept, with what they showed: an index beside the cases."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
import torch

from corpus.traits import key
from fuzz.finding import load_case
from fuzz.runner import Runner

FOLDER = Path(__file__).parents[2] / "corpus" / "regressions"
INDEX = tomllib.loads((FOLDER / "index.toml").read_text())


def test_the_index_names_every_case() -> None:
    assert {path.stem for path in FOLDER.glob("*.json")} == set(INDEX)


def test_every_trophy_has_its_repro() -> None:
    trophies = (FOLDER.parents[1] / "TROPHIES.md").read_text()
    for name in INDEX:
        assert f"docs/trophies/{name}.py" in trophies
        assert (FOLDER.parents[1] / "docs" / "trophies" / f"{name}.py").exists()


@pytest.mark.parametrize("name", sorted(INDEX))
def test_a_case_shows_what_it_showed(runner: Runner, name: str) -> None:
    entry = INDEX[name]
    library, version = entry["library"].split()
    if library == "torch" and not torch.__version__.startswith(version):
        pytest.skip(f"seen on {entry['library']}, this is torch {torch.__version__}")
    case = load_case(FOLDER / f"{name}.json")
    judgement = runner.run(case).judgement
    failures = judgement.failures
    assert failures, judgement
    assert entry["kind"] in {failure.kind for failure in failures}
    assert key(case, failures[0].call, failures[0].kind) == name
