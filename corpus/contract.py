"""What a backend promises, as data. Every line has its source; the oracles know contracts and no backends."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Generic, Literal, TypeVar

from corpus.case import CaseError

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Promise(Generic[T]):
    """One line of a contract: a value, and the documentation, docstring or standard that it comes from."""

    value: T
    source: str


@dataclass(frozen=True, slots=True)
class OpContract:
    """What one collective accepts.

    `dtypes`: what it takes, or, for a reducing collective, `reduce_ops`: the dtypes for each reduce op.
    `returned`: the library allocates the outputs and returns them (out of place). `in_place`: inputs and outputs are
    the same tensors (all_reduce, broadcast, reduce of torch.distributed). Neither: the caller allocates the outputs.
    """

    source: str
    dtypes: tuple[str, ...] = ()
    reduce_ops: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    returned: bool = False
    in_place: bool = False
    async_op: bool = True
    min_world: int = 1
    uneven: bool = False
    """Lists whose elements differ in shape (all_gather, all_to_all) or splits that differ (all_to_all_single)."""
    stacked: bool = False
    """The large tensor of all_gather_into_tensor and reduce_scatter_tensor: a stack, (ranks, *shape), works too."""

    def accepts(self, dtype: str, reduce_op: str | None) -> bool:
        """Whether the contract says that this dtype (and reduce op) works."""
        return dtype in (self.dtypes if reduce_op is None else self.reduce_ops.get(reduce_op, ()))


Layouts = Literal["right", "right or refused", "refused"]
Extremum = Literal["propagates", "either", "unspecified"]
Accumulation = Literal["native", "native or wide"]
Buffer = Literal["unchanged", "unspecified"]


@dataclass(frozen=True, slots=True)
class Contract:
    """One backend's promises, under one setting of its flags."""

    backend: str
    ops: Mapping[str, OpContract]
    views: Promise[Layouts]
    """A tensor that is not contiguous, or has lazy conj or neg bits: right, refused by an exception, or either."""
    agreement: Mapping[str, Promise[bool]] = field(default_factory=dict)
    """By op: every rank ends with identical bits. Absent: unspecified."""
    accumulation: Promise[Accumulation] = Promise("native", "default: one rounding an addition, in the dtype")
    """SUM: each partial sum rounds to the dtype, or may stay wide."""
    average: Promise[tuple[str, ...]] = Promise(("sum/n",), "default: the sum, divided by the number of ranks")
    """AVG: the legal forms, of "sum/n" (divide the sum), "sum*(1/n)", and "pre/n", "pre*(1/n)" (each input first)."""
    nan_extremum: Promise[Extremum] = Promise("unspecified", "default: nothing is said of NaN in MIN and MAX")
    """MIN and MAX with a NaN among the inputs: NaN, NaN or the extremum of the rest, or anything."""
    subnormals: Promise[Literal["exact", "may flush"]] = Promise("exact", "default: IEEE 754 gradual underflow")
    reduce_others: Promise[Buffer] = Promise("unchanged", "default: only the root receives a result")
    """`reduce`: what may happen to the buffers of the ranks that are not the root."""
    in_place_from: Promise[int] = Promise(0, "default: an out-of-place call leaves its input alone")
    """Out-of-place all_reduce of this many elements or more may overwrite its input, and return it; 0: never."""
    illegal: Mapping[str, Promise[tuple[str, ...]]] = field(default_factory=dict)
    """By what is wrong with a program (`corpus.case.ILLEGAL`): the collectives that raise then, on every rank that can
    know of it. Absent: nothing is promised.
    """
    regions: Promise[tuple[str, ...]] = Promise((), "default: no calls are grouped")
    """Collectives of which several can be one region: of one group, dtype and reduce op."""
    permuted_groups: Promise[bool] = Promise(False, "default: a group has its ranks in ascending order")
    """A group can have its ranks in any order, which is then the order of its own ranks."""
    bool_reduction: Promise[bool] = Promise(True, "default: bool is a number of 0 and 1, and a sum is an or")
    """bool in SUM and PRODUCT is the logical or and and."""

    def op(self, name: str) -> OpContract:
        """Return what the contract says of a collective.

        Raises:
            CaseError: the backend does not have it.
        """
        try:
            return self.ops[name]
        except KeyError:
            raise CaseError(f"{self.backend} does not have {name}") from None
