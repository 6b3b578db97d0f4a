"""A backend's name in a case."""

from __future__ import annotations

import pytest

from corpus.naming import Named, parse


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("gloo", Named("gloo")),
        ("gloo@torch-2.13", Named("gloo", "torch-2.13")),
        ("a@b@c", Named("a@b", "c")),
        ("gloo@", Named("gloo@")),
        ("gloo@../up", Named("gloo@../up")),
    ],
)
def test_an_environment_stands_behind_the_last_at(text: str, named: Named) -> None:
    assert parse(text) == named
