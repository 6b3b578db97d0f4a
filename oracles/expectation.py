"""What an output should hold: for each of its pieces, the data of the sources and a prediction, on one period."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from corpus.case import Call
from corpus.contract import Contract
from corpus.dtypes import DType
from corpus.meaning import Piece
from corpus.payload import Bits, Payload, negated, scaled
from oracles.compare import Block, Positions, stretches
from oracles.legal import Reduction, predict


@dataclass(frozen=True, slots=True)
class Part:
    """One piece of an output, as an entry in tables.

    `tables` hold each source's words and `predicted` the result of them: one period where the sources repeat in step
    (then `walk` says where each element stands in it), else the whole piece. `reduction` None is a copy.
    """

    piece: Piece
    reduction: Reduction | None
    tables: tuple[Bits, ...]
    predicted: Bits
    walk: Payload | None

    def blocks(self) -> Iterator[Block]:
        """(offset in the piece, index in the tables, number of elements) of contiguous stretches."""
        if self.walk is None:
            return stretches(self.piece.length)
        return self.walk.blocks(self.piece.sources[0].start, self.piece.length)

    def places(self, offsets: Positions) -> Positions:
        """Index in the tables of each offset in the piece."""
        return offsets if self.walk is None else self.walk.places(offsets + self.piece.sources[0].start)


def part(contract: Contract, call: Call, piece: Piece, data: Sequence[Payload]) -> Part:
    """Predict one piece from the contents of its sources."""
    first = data[0]
    start = piece.sources[0].start
    in_step = all(
        other.stream == first.stream
        and other.period == first.period
        and len(other.table) == len(first.table)
        and source.start == start
        for other, source in zip(data, piece.sources, strict=True)
    )
    walk = first if in_step and piece.length >= len(first.table) else None
    tables = tuple(
        other.table if walk is not None else other.bits(source.start, piece.length)
        for other, source in zip(data, piece.sources, strict=True)
    )
    if piece.local is not None:
        # Judged as a copy of what the computation gives.
        result = _LOCAL[piece.local](tables[0], first.dtype)
        return Part(piece, None, (result,), result, walk)
    if piece.reduce_op is None:
        return Part(piece, None, tables, tables[0], walk)
    reduction = Reduction(
        piece.reduce_op, first.dtype, len(tables), contract, 1.0 if call.factor is None else call.factor
    )
    return Part(piece, reduction, tables, predict(reduction, tables), walk)


_LOCAL: Mapping[str, Callable[[Bits, DType], Bits]] = {
    "copy": lambda words, dtype: words,
    "negate": negated,
    "double": lambda words, dtype: scaled(words, dtype, 1),
}


def expected(parts: list[Part], positions: Positions) -> Bits:
    """The predicted words at positions of the output; positions outside all pieces give zero words."""
    shape = (len(positions), *parts[0].predicted.shape[1:])
    words = np.zeros(shape, dtype=parts[0].predicted.dtype)
    for each in parts:
        inside = (positions >= each.piece.start) & (positions < each.piece.start + each.piece.length)
        if inside.any():
            words[inside] = each.predicted[each.places(positions[inside] - each.piece.start)]
    return words


def gathered(tables: tuple[Bits, ...], places: Positions) -> list[Bits]:
    """Each source's words at these places of its table."""
    return [table[places] for table in tables]
