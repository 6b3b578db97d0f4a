"""Cases that failed on a released library are kept, with what they showed: an index beside the cases."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest

from corpus.traits import key
from fuzz import environments
from fuzz.finding import load_case
from fuzz.ranks.cluster import Cluster
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


def installed(library: str) -> str:
    """The version of a library, in this interpreter or in the environment of its name; otherwise why there is none."""
    try:
        return metadata.version(library)
    except metadata.PackageNotFoundError:
        try:
            packages = environments.find(library).packages
        except environments.TargetError as error:
            return str(error)
        return dict(line.split("==") for line in packages if "==" in line).get(library, "not in its environment")


@pytest.fixture(scope="module")
def anywhere(cluster: Cluster) -> Iterator[Runner]:
    """A runner that knows every environment."""
    with Runner(cluster=cluster, pythons={one.name: one.python for one in environments.environments()}) as made:
        yield made


@pytest.mark.parametrize("name", sorted(INDEX))
def test_a_case_shows_what_it_showed(anywhere: Runner, name: str) -> None:
    entry = INDEX[name]
    library, version = entry["library"].split()
    if not installed(library).startswith(version):
        pytest.skip(f"seen on {entry['library']}; {library}: {installed(library)}")
    case = load_case(FOLDER / f"{name}.json")
    judgement = anywhere.run(case).judgement
    failures = judgement.failures
    assert failures, judgement
    assert entry["kind"] in {failure.kind for failure in failures}
    assert key(case, failures[0].call, failures[0].kind) == name
