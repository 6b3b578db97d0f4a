"""One Ray cluster, and one world of each kind, for all tests of the ranks."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from fuzz.ranks.cluster import Cluster
from fuzz.ranks.pool import World, WorldConfig

TOY = "toy:Toy"


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    os.environ["CCLFUZZ_TEST_INHERITED"] = "inherited"
    # As many GPUs as the tests place ranks on; nothing here touches one.
    with Cluster.connect(None, gpus=2) as connected:
        yield connected
    del os.environ["CCLFUZZ_TEST_INHERITED"]


@pytest.fixture(scope="session")
def pair(cluster: Cluster) -> Iterator[World]:
    """A gloo world of two ranks, which every test leaves as it likes."""
    with World(WorldConfig("gloo", 2, executor=TOY), cluster) as world:
        yield world
