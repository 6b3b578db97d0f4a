"""Virtual environments for libraries under test: they pin each other, and a person wants two versions side by side.

A target is a requirements file. Lines that begin with "# variable:" set a variable for the installation, such as
`# variable: DS_BUILD_OPS=0`, and those that begin with "# no-deps:" name a requirement whose own are not installed.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

TARGETS: Final = Path(__file__).resolve().parents[1] / "ci" / "targets"
"""The requirements files that come with a clone."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}\Z")
_RECORD = "cclfuzz.json"
_VARIABLE, _NO_DEPS = "# variable:", "# no-deps:"


class TargetError(ValueError):
    """An environment that cannot be made or is not there; one line."""


@dataclass(frozen=True, slots=True)
class Environment:
    """A virtual environment that is complete. `requirements` is the text it was made from, `packages` what pip says."""

    name: str
    requirements: str
    packages: tuple[str, ...]

    @property
    def python(self) -> str:
        """Its interpreter."""
        return str(home() / self.name / "bin" / "python")

    @property
    def digest(self) -> str:
        """8 hexadecimal digits that name what it was made from."""
        return hashlib.sha256(self.requirements.encode()).hexdigest()[:8]


def home() -> Path:
    """Where environments are: $CCLFUZZ_ENVS, or cclfuzz/envs in the user's cache directory."""
    given = os.environ.get("CCLFUZZ_ENVS")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(given).absolute() if given else cache / "cclfuzz" / "envs"


def targets() -> dict[str, Path]:
    """The requirements files that come with a clone, by name."""
    return {path.stem: path for path in sorted(TARGETS.glob("*.txt"))}


def environments() -> list[Environment]:
    """Every complete environment, by name."""
    found = (_read(path) for path in sorted(home().glob(f"*/{_RECORD}")))
    return [one for one in found if one is not None]


def find(name: str) -> Environment:
    """Return an environment.

    Raises:
        TargetError: there is none of this name; the message lists those that are.
    """
    for one in environments():
        if one.name == name:
            return one
    there = ", ".join(one.name for one in environments()) or "none"
    raise TargetError(f"environment {name!r:.80}: there is {there} (cclfuzz env create makes one)")


def create(name: str, requirements: Path | None = None) -> Environment:
    """Make a virtual environment from a requirements file, by default the target of this name.

    One that is there already and was made from the same requirements is returned as it is.

    Raises:
        TargetError: the name or the file is no good, it is there with other requirements, or pip fails; one line.
    """
    if _NAME.match(name) is None:
        raise TargetError(f"environment {name!r:.80}: a name has letters, digits and ._-")
    text = _text(name, requirements)
    folder = home() / name
    there = _read(folder / _RECORD)
    if there is not None:
        if there.requirements == text:
            return there
        raise TargetError(f"environment {name}: made from other requirements; remove {folder} first")
    shutil.rmtree(folder, ignore_errors=True)  # one that was not finished
    try:
        _build(folder, text)
        made = Environment(name, text, _packages(folder))
        (folder / _RECORD).write_text(json.dumps(asdict(made), indent=1))
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return made


def _text(name: str, requirements: Path | None) -> str:
    path = requirements or targets().get(name)
    if path is None:
        raise TargetError(f"environment {name}: --from FILE, or one of the targets {', '.join(targets())}")
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise TargetError(f"{path}: {getattr(error, 'strerror', None) or 'not UTF-8'}") from error


def _build(folder: Path, text: str) -> None:
    variables = dict(line.partition("=")[::2] for line in _directives(text, _VARIABLE))
    folder.parent.mkdir(parents=True, exist_ok=True)
    _run([sys.executable, "-m", "venv", str(folder)], {})
    (folder / "requirements.txt").write_text(text)
    pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    _run([*pip, "-r", str(folder / "requirements.txt")], variables)
    for requirement in _directives(text, _NO_DEPS):
        _run([*pip, "--no-deps", requirement], variables)


def _directives(text: str, prefix: str) -> list[str]:
    return [line.removeprefix(prefix).strip() for line in text.splitlines() if line.startswith(prefix)]


def _run(command: list[str], variables: dict[str, str]) -> str:
    # An interpreter's own settings, such as its import path, are not for another one.
    inherited = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    done = subprocess.run(command, env=inherited | variables, capture_output=True, text=True, check=False)
    if done.returncode:
        said = done.stderr.strip().splitlines() or ["it said nothing"]
        errors = [line for line in said if line.startswith("ERROR")] or said[-1:]
        raise TargetError(f"{' '.join(command[1:4])} failed: {errors[0][:300]}")
    return done.stdout


def _packages(folder: Path) -> tuple[str, ...]:
    said = _run([str(folder / "bin" / "python"), "-m", "pip", "list", "--format=freeze", "--not-required"], {})
    return tuple(line for line in said.splitlines() if not line.startswith(("pip==", "setuptools==")))


def _read(path: Path) -> Environment | None:
    """The record of an environment; None where it has none, because it was never finished."""
    try:
        data = json.loads(path.read_text())
        return Environment(data["name"], data["requirements"], tuple(data["packages"]))
    except FileNotFoundError:
        return None
    except (KeyError, TypeError, ValueError) as error:
        raise TargetError(f"{path}: not one of ours ({error})") from error
