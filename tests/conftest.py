"""Fixtures that every test may use."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from hypothesis.internal.conjecture import providers

from fuzz.ranks.cluster import Cluster
from fuzz.runner import Runner

# Hypothesis draws integers from those that stand in the source of the modules imported so far. Then a seed would name
# other cases in every worker, and after every change to a file that has nothing to do with it.
setattr(providers, "_get_local_constants", providers.Constants)  # noqa: B010


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """One private cluster for all tests of a worker: it takes seconds to start, a world hundredths."""
    os.environ["CCLFUZZ_TEST_INHERITED"] = "inherited"
    # As many GPUs as the tests place ranks on; nothing here touches one.
    with Cluster.connect(None, gpus=2) as connected:
        yield connected
    del os.environ["CCLFUZZ_TEST_INHERITED"]


@pytest.fixture(scope="session")
def runner(cluster: Cluster) -> Iterator[Runner]:
    """Worlds that are kept between tests."""
    with Runner(cluster=cluster) as made:
        yield made
