"""Comparing long arrays with a short table, block by block: no expected array is built, and blocks stay in cache."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import numpy.typing as npt

from corpus.payload import Bits, Payload

Positions = npt.NDArray[np.int64]

Block = tuple[int, int, int]
"""(offset in what is looked at, index in the table, number of elements), as `Payload.blocks` yields them."""

STRETCH = 16_384
"""Elements of one block of an array that is its own table."""


def stretches(length: int) -> Iterator[Block]:
    """The blocks of an array of `length` elements that is compared with a table of the same length."""
    for offset in range(0, length, STRETCH):
        yield offset, offset, min(STRETCH, length - offset)


def differing(seen: Bits, table: Bits, blocks: Iterable[Block]) -> Iterator[tuple[Block, npt.NDArray[np.bool_]]]:
    """The blocks in which `seen` is not what the table says, each with the mask of its elements that differ."""
    if seen.ndim == 2 and seen.dtype.itemsize <= 4 and seen.flags.c_contiguous and table.flags.c_contiguous:
        # The two components of a complex number compare faster as one word.
        pair = f"u{2 * seen.dtype.itemsize}"
        seen, table = seen.view(pair).reshape(-1), table.view(pair).reshape(-1)
    for block in blocks:
        offset, index, count = block
        mask = seen[offset : offset + count] != table[index : index + count]
        if mask.any():
            yield block, mask if mask.ndim == 1 else mask.any(axis=1)


def changed(seen: Bits, payload: Payload, start: int = 0) -> Positions:
    """Positions in `seen` that do not hold the payload's elements from `start` on."""
    parts = [
        block[0] + np.flatnonzero(mask)
        for block, mask in differing(seen, payload.table, payload.blocks(start, len(seen)))
    ]
    return np.concatenate(parts) if parts else np.empty(0, dtype=np.int64)
