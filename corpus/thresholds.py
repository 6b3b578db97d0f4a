"""Sizes at which a backend changes its mind."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Threshold:
    """A size at which a route, an algorithm or a segment count changes.

    `unit` is "elements" or "bytes" (of the whole payload of one rank). `alignment` is the granularity, in the same
    unit, that the code on one side works in. `source` is where it stands.
    """

    size: int
    unit: str
    source: str
    alignment: int = 16

    def elements(self, itemsize: int) -> int:
        """The threshold in elements of `itemsize` bytes, rounded down."""
        return self.size if self.unit == "elements" else self.size // itemsize


FAMOUS = Threshold(
    4_194_304,
    "elements",
    "report A: a fork of vLLM reduced in place every all-reduce of 4,194,304 or more elements",
)
"""Tried on every backend: 2**22 elements, and round sizes in general, are where thresholds are put."""
