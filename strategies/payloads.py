"""Which data to send. Never constants: a test whose ranks all send ones cannot see who was left out."""

from __future__ import annotations

from functools import cache
from typing import Final

from hypothesis.strategies import DrawFn

from corpus.dtypes import DTYPES, Kind
from strategies.choose import choose

MEMBERSHIP: Final = 5
"""Ranks whose every order of floating-point additions can be tried (105 of them at five). Above, the data is made so
that few orders differ, and the check stays exact."""

_ANY: Final = ("index", "index", "exact", "wide", "wide", "special", "special", "sparse")
_PRODUCT: Final = ("index", "exact", "wide", "wide", "wide", "special", "special", "sparse")
"""Products of "index" and "exact" soon leave the range of the dtype; "wide" values lie within 2**-6 and 2**6."""
_CROWD: Final = ("index", "index", "exact", "exact", "sparse")
SUMS: Final = frozenset({"sum", "avg", "product", "premul_sum"})


@cache
def payloads(reduce_op: str | None, dtype: str, ranks: int) -> tuple[str, ...]:
    """Payloads for a call over `ranks` ranks, in shrinking order; repetition is weight."""
    rounds = DTYPES[dtype].kind in (Kind.FLOAT, Kind.COMPLEX)
    if reduce_op in SUMS and rounds and ranks > MEMBERSHIP:
        return _CROWD
    return _PRODUCT if reduce_op == "product" else _ANY


def draw_payload(draw: DrawFn, reduce_op: str | None, dtype: str, ranks: int) -> str:
    """Draw what the inputs of a call hold."""
    return choose(draw, "payload", payloads(reduce_op, dtype, ranks))
