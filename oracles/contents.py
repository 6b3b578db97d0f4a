"""What every tensor holds, on every rank and between any two calls, if the library is right so far."""

from __future__ import annotations

import numpy as np

from corpus.case import Case
from corpus.contract import Contract
from corpus.dtypes import DTYPES
from corpus.meaning import Flow, Piece, pieces
from corpus.payload import Bits, Payload, dense, payload
from oracles.expectation import Part, part


class Contents:
    """The contents of the tensors of one case under one contract, computed when they are asked for and kept."""

    def __init__(self, case: Case, contract: Contract) -> None:
        self.case = case
        self.contract = contract
        self._flow: Flow | None = None
        self._known: dict[tuple[str, int, int], Payload] = {}

    @property
    def flow(self) -> Flow:
        """How the contents come about."""
        if self._flow is None:
            self._flow = Flow(self.case)
        return self._flow

    def before(self, index: int, name: str, rank: int) -> Payload:
        """What a tensor holds on `rank` (global) just before call `index`, or at the end (the program's length).

        Raises:
            ValueError: the library has not yet returned it.
        """
        writer = self.flow.writer(name, rank, index) if index else -1
        if writer < 0:
            return payload(self.case, name, rank)
        place = (name, rank, writer)
        if place not in self._known:
            self._known[place] = self._after(writer, name, rank)
        return self._known[place]

    def overwritten(self, name: str, rank: int, index: int) -> int | None:
        """Index of the first call after `index` that writes a tensor on `rank` (global); None: nobody does."""
        # Most programs have one call, and need no flow for that.
        return self.flow.overwritten(name, rank, index) if len(self.case.program) > index + 1 else None

    def _after(self, index: int, name: str, rank: int) -> Payload:
        """What call `index` writes."""
        found = self.parts(index, rank, name)
        numel = self.case.tensor(name).on(rank).numel
        if len(found) == 1 and found[0].walk is not None and found[0].piece.sources[0].start == 0:
            walk = found[0].walk
            return Payload(walk.dtype, numel, found[0].predicted, walk.stream, walk.period)
        dtype = DTYPES[self.case.tensor(name).on(rank).dtype]
        return dense(dtype, _assembled(found, numel))

    def parts(self, index: int, rank: int, output: str) -> list[Part]:
        """What `output` should hold on `rank` (global) after call `index`; empty where the call leaves it alone."""
        call = self.case.program[index]
        return [self._part(index, piece) for piece in pieces(self.case, call, rank, output)]

    def _part(self, index: int, piece: Piece) -> Part:
        data = [self.before(index, source.tensor, source.rank) for source in piece.sources]
        return part(self.contract, self.case.program[index], piece, data)


def _assembled(found: list[Part], numel: int) -> Bits:
    table = np.empty((numel, *found[0].predicted.shape[1:]), dtype=found[0].predicted.dtype)
    for each in found:
        for offset, index, count in each.blocks():
            start = each.piece.start + offset
            table[start : start + count] = each.predicted[index : index + count]
    table.flags.writeable = False
    return table
