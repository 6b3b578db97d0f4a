"""One world of each kind for all tests of the ranks."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from fuzz.ranks.cluster import Cluster
from fuzz.ranks.pool import World, WorldConfig

TOY = "toy:Toy"


@pytest.fixture(scope="session")
def pair(cluster: Cluster) -> Iterator[World]:
    """A gloo world of two ranks, which every test leaves as it likes."""
    with World(WorldConfig("gloo", 2, executor=TOY), cluster) as world:
        yield world
