"""What an oracle reports."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from types import MappingProxyType
from typing import Any, ClassVar


class Verdict(IntEnum):
    """The four classes of verdicts. Only the first two, and breaches of a cited promise in the third, are bugs."""

    WRONG = 1
    """A wrong result or a broken promise on a legal program."""
    DEAD = 2
    """A crash or a hang on a legal program."""
    ILLEGAL = 3
    """An illegal program accepted, or refused badly."""
    DIVERGENCE = 4
    """Implementations or ranks differ where nothing is promised."""


class Failure(AssertionError):
    """One thing that went wrong in one case.

    `kind` is a short phrase, the same for the same symptom at any size ("wrong result", "input changed", "crash").
    `call` is the index in the program (-1: before the first), `op` its collective, `ranks` where it was seen (global),
    `promise` the contract's line that it breaks with its source, `observed` and `legal` a few elements in words.
    `details` is JSON-able, small, and the oracle's own.
    """

    oracle: ClassVar[str] = "oracle"

    def __init__(
        self,
        kind: str,
        message: str,
        *,
        call: int,
        op: str,
        ranks: tuple[int, ...] = (),
        tensor: str | None = None,
        verdict: Verdict = Verdict.WRONG,
        promise: str = "",
        observed: str = "",
        legal: str = "",
        details: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message
        self.call = call
        self.op = op
        self.ranks = ranks
        self.tensor = tensor
        self.verdict = verdict
        self.promise = promise
        self.observed = observed
        self.legal = legal
        self.details = dict(details)

    @property
    def symptom(self) -> tuple[str, str]:
        """(op, kind): what two failures of one bug share, whatever the size."""
        return self.op, self.kind

    @property
    def bug(self) -> bool:
        """Whether it is called a bug of the library: not a divergence where nothing is promised, and of an illegal
        program only where a cited promise is broken."""
        if self.verdict is Verdict.ILLEGAL:
            return bool(self.promise)
        return self.verdict is not Verdict.DIVERGENCE

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-able description."""
        return {
            "oracle": self.oracle,
            "kind": self.kind,
            "verdict": int(self.verdict),
            "message": self.message,
            "call": self.call,
            "op": self.op,
            "ranks": list(self.ranks),
            "tensor": self.tensor,
            "promise": self.promise,
            "observed": self.observed,
            "legal": self.legal,
            "details": self.details,
        }


class NumericFailure(Failure):
    """An output holds an element that no legal order of operations gives."""

    oracle = "numeric"


class PreservationFailure(Failure):
    """Something changed that is not an output, or an output shares memory with an input."""

    oracle = "preservation"


class AgreementFailure(Failure):
    """Ranks hold different bits where the contract promises the same."""

    oracle = "agreement"


class LivenessFailure(Failure):
    """A rank crashed, hung, or was stopped."""

    oracle = "liveness"


class RefusalFailure(Failure):
    """A legal call raised, where the contract says that it works."""

    oracle = "errors"


class RelationFailure(Failure):
    """Two results that belong together differ, and each of them is legal."""

    oracle = "relations"


class IllegalFailure(Failure):
    """An illegal program was accepted, or refused badly."""

    oracle = "illegal"


class BarrierFailure(Failure):
    """A rank left a barrier that another one had not entered."""

    oracle = "barrier"


class SchemaFailure(Failure):
    """What a registered operator's schema or fake says is not what happened."""

    oracle = "schema"
