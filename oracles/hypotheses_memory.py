"""Where a wrong result may come from: memory beside the view, memory that was not written, or no data at all."""

from __future__ import annotations

from typing import Final

import numpy as np

from corpus.case import TensorSpec
from corpus.payload import Bits, guard
from oracles.expectation import Part
from oracles.legal import predict
from oracles.text import number
from oracles.wrong import Guess, Wrong

LARGEST_STORAGE: Final = 1 << 22
"""Elements of base storages, over all ranks, above which reading past the view is not tried."""


def unwritten(wrong: Wrong) -> Guess | None:
    """An output, or its tail, that the call did not write."""
    if wrong.buffer.spec.payload is None:
        raw = np.ascontiguousarray(wrong.observed).view(np.uint8)
        poisoned = bool((raw == 0xA5).all())
        return Guess(wrong.left_alone("written", "what freed memory was filled with")) if poisoned else None
    before = wrong.source(wrong.buffer.name, wrong.rank)
    if not np.array_equal(wrong.observed, before.table[before.places(wrong.sample)]):
        return None
    return Guess(wrong.left_alone("written", "what the output held before the call"))


def constant(wrong: Wrong) -> Guess | None:
    """One value in every wrong element."""
    first = wrong.observed[:1]
    if len(wrong.places) < 2 or not (wrong.observed == first).all():
        return None
    if not first.any():
        return Guess(f"{wrong.holding} zeros only")
    return Guess(f"{wrong.holding} one value only, {number(first, wrong.buffer.dtype)}")


def base_storage(wrong: Wrong) -> Guess | None:
    """A view taken for the dense block of memory that begins at its first element, where it is read or written."""
    specs = [wrong.case.tensor(source.tensor).on(source.rank) for part in wrong.parts for source in part.piece.sources]
    mine = wrong.buffer.spec
    if all(_dense(spec) for spec in (mine, *specs)):
        return None
    if sum(spec.storage_elements for spec in (mine, *specs)) > LARGEST_STORAGE:
        return None
    result = np.zeros((mine.numel, *wrong.seen.shape[1:]), dtype=wrong.seen.dtype)
    for part in wrong.parts:
        piece = part.piece
        sources = []
        for source in piece.sources:
            spec = wrong.case.tensor(source.tensor).on(source.rank)
            start = spec.layout.before + source.start
            stored = storage_words(wrong, source.tensor, source.rank)[start : start + piece.length]
            if len(stored) < piece.length:
                return None
            sources.append(stored)
        result[piece.start : piece.start + piece.length] = computed(part, sources)
    if mine.payload is None or _dense(mine):
        held = wrong.holds(result[wrong.sample])
        return Guess("it holds the base storage's elements instead of the view's") if held else None
    from oracles.buffers import flip_lazy, strided

    for both in (True, False):
        # Read and written as if dense, or only read so.
        memory = storage_words(wrong, wrong.buffer.name, wrong.rank)
        before = mine.layout.before
        if both:
            memory[before : before + mine.numel] = result[: len(memory) - before]
        else:
            strided(memory, mine)[...] = result.reshape(mine.shape + result.shape[1:])
        view = flip_lazy(strided(memory, mine).reshape(mine.numel, *memory.shape[1:]), mine)
        if wrong.holds(view[wrong.sample]):
            taken = "the view is taken for a dense block of memory"
            return Guess(f"the base storage's elements instead of the view's: {taken}")
    return None


def _dense(spec: TensorSpec) -> bool:
    return spec.is_contiguous and not (spec.layout.conj or spec.layout.neg)


def computed(part: Part, sources: list[Bits]) -> Bits:
    """What a piece would hold if its sources held these words."""
    return sources[0] if part.reduction is None else predict(part.reduction, sources)


def storage_words(wrong: Wrong, name: str, rank: int) -> Bits:
    """The whole base storage of a tensor as it is before the call."""
    from oracles.buffers import flip_lazy, strided

    spec = wrong.case.tensor(name).on(rank)
    words = guard(wrong.case, name, rank).bits()
    if spec.numel:
        logical = flip_lazy(wrong.source(name, rank).bits(), spec)
        strided(words, spec)[...] = logical.reshape(spec.shape + logical.shape[1:])
    return words
