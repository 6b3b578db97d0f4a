"""What may be drawn: a backend's contract and thresholds, narrowed by what the user asked for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

from corpus.case import DEFAULT_MEMORY, MAX_CALLS, MAX_WORLD, MEMORY_KINDS, OPS, REDUCE_OPS, REDUCING
from corpus.contract import Contract, OpContract
from corpus.dtypes import DTYPES
from corpus.flags import Flag, Scope
from corpus.thresholds import FAMOUS, Threshold
from strategies.boundaries import MOST_THRESHOLDS
from strategies.layouts import Layouts

Menu: TypeAlias = Mapping[str, Mapping[str | None, tuple[str, ...]]]
"""By op and reduce op (None where there is none) the dtypes that the contract takes, all in corpus order."""

_LARGEST_ELEMENT: Final = max(dtype.itemsize for dtype in DTYPES.values())
_LEAST_WORLD: Final = {"send_recv": 2}
"""Ranks that an op needs whatever the backend: nobody sends to themselves."""


@dataclass(frozen=True, kw_only=True)
class Space:
    """What may be drawn for one configuration.

    `flags` are drawn with the case (call scope); `set_flags` stand in every case. `ops`, `dtypes` and `reduce_ops` None
    mean all that the contract has. `memory` is in bytes a rank, the library's own tensors included. `illegal`: programs
    with a mistake in them are drawn, in place of legal ones. `modes`: how programs are run, the plainest first.

    Raises:
        ValueError: a filter names what the contract does not have, or nothing is left; the message says what there is.
    """

    backend: str
    contract: Contract
    thresholds: tuple[Threshold, ...] = (FAMOUS,)
    flags: tuple[Flag, ...] = ()
    set_flags: tuple[tuple[str, str], ...] = ()
    fault: str | None = None
    worlds: tuple[int, ...] = (2, 3, 4)
    ops: tuple[str, ...] | None = None
    dtypes: tuple[str, ...] | None = None
    reduce_ops: tuple[str, ...] | None = None
    layouts: Layouts = "any"
    memory: int = DEFAULT_MEMORY
    memory_kind: str = "cpu"
    max_calls: int = 5
    illegal: bool = False
    modes: tuple[str, ...] = ("eager",)

    def __post_init__(self) -> None:
        if not self.worlds or not all(1 <= size <= MAX_WORLD for size in self.worlds):
            raise ValueError(f"worlds: sizes from 1 to {MAX_WORLD}, not {self.worlds}")
        if not 1 <= self.max_calls <= MAX_CALLS:
            raise ValueError(f"max_calls: 1 to {MAX_CALLS}, not {self.max_calls}")
        if not self.modes or self.modes[0] != "eager":
            raise ValueError(f"modes: eager first, not {self.modes}")
        if self.layouts not in ("any", "contiguous"):
            raise ValueError(f"layouts: any or contiguous, not {self.layouts}")
        if self.memory_kind not in MEMORY_KINDS:
            raise ValueError(f"memory_kind: one of {', '.join(MEMORY_KINDS)}, not {self.memory_kind}")
        least = _LARGEST_ELEMENT * 2 * max(self.worlds) * self.max_calls
        if self.memory < least:
            raise ValueError(f"memory: at least {least} bytes for these worlds and calls, not {self.memory}")
        if len(self.thresholds) > MOST_THRESHOLDS:
            raise ValueError(f"thresholds: at most {MOST_THRESHOLDS}, not {len(self.thresholds)}")
        for flag in self.flags:
            if flag.scope is not Scope.CALL:
                raise ValueError(f"flag {flag.name}: has {flag.scope} scope, so it belongs to set_flags")
        self._check_filters()
        if self.illegal and not any(self.menu(size) for size in self.worlds if size > 1):
            raise ValueError(f"worlds: an illegal program needs a call of 2 ranks or more, which {self.worlds} has not")
        if not any(self.menu(size) for size in self.worlds):
            raise ValueError(
                f"nothing is left to draw: {self.backend} has {self._offer()}, which these ops, dtypes, reduce ops and "
                f"worlds {self.worlds} rule out together"
            )

    def menu(self, size: int) -> Menu:
        """What can be called in a world of `size` ranks."""
        return {
            op: dtypes
            for op in OPS
            if op in self.contract.ops
            and size >= self.least_world(op)
            and (self.ops is None or op in self.ops)
            and (dtypes := self._dtypes(op, self.contract.ops[op]))
        }

    def least_world(self, op: str) -> int:
        """Ranks that a group needs for an op."""
        return max(self.contract.ops[op].min_world, _LEAST_WORLD.get(op, 1))

    def _dtypes(self, op: str, contract: OpContract) -> Mapping[str | None, tuple[str, ...]]:
        if op == "barrier":
            asked = self.ops is not None or (self.dtypes is None and self.reduce_ops is None)
            return {None: ("float32",)} if asked else {}
        reduce_ops: Iterable[str | None] = (None,)
        if op in REDUCING:
            reduce_ops = [name for name in REDUCE_OPS if self.reduce_ops is None or name in self.reduce_ops]
        found = {
            reduce_op: tuple(
                name
                for name in DTYPES
                if contract.accepts(name, reduce_op) and (self.dtypes is None or name in self.dtypes)
            )
            for reduce_op in reduce_ops
        }
        return {reduce_op: dtypes for reduce_op, dtypes in found.items() if dtypes}

    def _check_filters(self) -> None:
        contracts = self.contract.ops
        reduce_ops = {name for contract in contracts.values() for name in contract.reduce_ops}
        dtypes = {name for contract in contracts.values() for name in contract.dtypes}
        dtypes |= {name for contract in contracts.values() for names in contract.reduce_ops.values() for name in names}
        for what, asked, there in (
            ("ops", self.ops, [name for name in OPS if name in contracts]),
            ("dtypes", self.dtypes, [name for name in DTYPES if name in dtypes]),
            ("reduce_ops", self.reduce_ops, [name for name in REDUCE_OPS if name in reduce_ops]),
        ):
            for name in asked or ():
                if name not in there:
                    raise ValueError(f"{what}: {self.backend} has {', '.join(there)}; not {name}")

    def _offer(self) -> str:
        whole = _unfiltered(self)
        return "; ".join(
            f"{op} of " + ", ".join(dict.fromkeys(name for names in dtypes.values() for name in names))
            for op in OPS
            if op in self.contract.ops and (dtypes := whole._dtypes(op, self.contract.ops[op]))
        )


def _unfiltered(space: Space) -> Space:
    return replace(space, ops=None, dtypes=None, reduce_ops=None)
