"""One world of each kind for all tests of the ranks."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fuzz.ranks.cluster import Cluster
from fuzz.ranks.pool import World, WorldConfig

TOY = "toy:Toy"


@pytest.fixture(scope="session")
def pair(cluster: Cluster) -> Iterator[World]:
    """A gloo world of two ranks, which every test leaves as it likes."""
    with World(WorldConfig("gloo", 2, executor=TOY), cluster) as world:
        yield world


@pytest.fixture
def other_python(tmp_path: Path) -> str:
    """An interpreter whose fork server is this test's alone: another test's worlds live on when it is killed."""
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH="$PYTHONPATH:{Path(__file__).parent}" exec {sys.executable} "$@"\n')
    python.chmod(0o700)
    return str(python)
