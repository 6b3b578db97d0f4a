"""Environments of libraries under test, made from tiny requirements."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from fuzz import environments
from fuzz.environments import TargetError, create, find


@pytest.fixture(autouse=True)
def home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("CCLFUZZ_ENVS", str(tmp_path / "envs"))
    return tmp_path / "envs"


def written(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_an_environment_is_made_once_and_found_again(tmp_path: Path, home: Path) -> None:
    nothing = written(tmp_path / "r.txt", "# nothing\n")
    made = create("plain", nothing)
    assert create("plain", nothing) == made == find("plain")
    assert [one.name for one in environments.environments()] == ["plain"]
    said = subprocess.run([made.python, "-c", "import sys; print(sys.prefix)"], capture_output=True, text=True)
    assert said.stdout.strip() == str(home / "plain")


def test_other_requirements_under_the_same_name_are_refused(tmp_path: Path) -> None:
    create("plain", written(tmp_path / "r.txt", "# nothing\n"))
    with pytest.raises(TargetError, match="made from other requirements"):
        create("plain", written(tmp_path / "r.txt", "# something\n"))


def test_one_that_failed_leaves_nothing(tmp_path: Path, home: Path) -> None:
    with pytest.raises(TargetError, match=r"-m pip install failed"):
        create("broken", written(tmp_path / "r.txt", "./no-such-folder\n"))
    assert not (home / "broken").exists()
    with pytest.raises(TargetError, match="there is none"):
        find("broken")


@pytest.mark.parametrize(
    ("name", "file", "words"),
    [
        ("../up", None, "a name has letters"),
        ("unheard-of", None, "one of the targets .*mpich"),
        ("x", Path("nowhere.txt"), "nowhere.txt: No such file"),
    ],
)
def test_what_cannot_be_is_said_in_one_line(name: str, file: Path | None, words: str) -> None:
    with pytest.raises(TargetError, match=words) as raised:
        create(name, file)
    assert "\n" not in str(raised.value)
