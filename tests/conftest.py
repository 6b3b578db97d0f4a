"""Fixtures that every test may use."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from fuzz.runner import Runner


@pytest.fixture(scope="session")
def runner() -> Iterator[Runner]:
    """One private cluster for all tests of a worker: a cluster takes seconds to start, a world hundredths."""
    with Runner() as made:
        yield made
