"""Which MPI function each collective is, and with what arguments.

MPI takes one buffer where torch.distributed takes a list of tensors. A list travels in one buffer that is copied from
or to the tensors; where there are counts by rank its parts have gaps between them. The lists of all_to_all are those of
MPI_Alltoallw, which takes a datatype with an address of its own for each rank.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from corpus.case import Call, Case
from corpus.meaning import split_matrix
from fuzz.backends.mpi_buffers import Buffers, flat, store

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Given:
    """A call of a case on one rank: what the arguments of an MPI function are made from.

    `in_place`: MPI_IN_PLACE is the send buffer where the function takes it. `counts`: the variant with counts by rank
    is called for equal ones too.
    """

    mpi: Any
    buffers: Buffers
    case: Case
    call: Call
    rank: int
    tensors: Mapping[str, torch.Tensor]
    in_place: bool
    counts: bool

    @property
    def ranks(self) -> tuple[int, ...]:
        """Global ranks of the group."""
        return self.case.ranks(self.call)

    @property
    def me(self) -> int:
        """This rank's place in the group."""
        return self.ranks.index(self.rank)

    @property
    def inputs(self) -> list[torch.Tensor]:
        """The input tensors that this rank has."""
        return [self.tensors[name] for name in self.call.inputs]

    @property
    def outputs(self) -> list[torch.Tensor]:
        """The output tensors that this rank has."""
        return [self.tensors[name] for name in self.call.outputs]

    @property
    def op(self) -> Any:
        """MPI's operator. Of bool, band, bor and bxor are the logical ones (MPI 4.1, 6.9.2)."""
        name = _OPERATORS[str(self.call.reduce_op)]
        logical = name.startswith("B") and self.dtype == "bool"
        return getattr(self.mpi, f"L{name[1:]}" if logical else name)

    @property
    def dtype(self) -> str:
        """The dtype of the call's tensors."""
        return self.case.tensor(self.call.inputs[0]).spec.dtype

    def lengths(self, names: Sequence[str]) -> list[int]:
        """Elements by rank: of one tensor as each rank has it, or of the tensors of a list as its holder has them."""
        if len(names) == 1 and len(self.ranks) > 1:
            return [self.case.tensor(names[0]).on(rank).numel for rank in self.ranks]
        holder = self.ranks[self.call.root or 0]
        return [self.case.tensor(name).on(holder).numel for name in names]

    def by_rank(self, lengths: Sequence[int]) -> bool:
        """Whether to call the variant with counts by rank. Every rank must find the same."""
        return self.counts or len(set(lengths)) > 1


Function: TypeAlias = tuple[str, tuple[Any, ...]]
"""The name of a method of a communicator ("": this rank calls nothing), and its arguments."""

_OPERATORS: Final = {
    "sum": "SUM",
    "product": "PROD",
    "max": "MAX",
    "min": "MIN",
    "band": "BAND",
    "bor": "BOR",
    "bxor": "BXOR",
}


def _all_reduce(it: Given) -> Function:
    return "Allreduce", (*_reduced(it), it.op)


def _reduce(it: Given) -> Function:
    if it.me == it.call.root:
        return "Reduce", (*_reduced(it), it.op, it.call.root)
    return "Reduce", (it.buffers.whole(it.buffers.dense(it.inputs[0])), None, it.op, it.call.root)


def _reduced(it: Given) -> tuple[Any, Any]:
    """Send and receive buffer of a reduction to a tensor of the input's size."""
    x, output = it.inputs[0], it.buffers.dense(it.outputs[0], written=True)
    if it.in_place:
        output.copy_(it.buffers.dense(x))
        return it.mpi.IN_PLACE, it.buffers.whole(output)
    return it.buffers.whole(it.buffers.dense(x)), it.buffers.whole(output)


def _broadcast(it: Given) -> Function:
    return "Bcast", (it.buffers.whole(it.inputs[0], written=True), it.call.root)


def _all_gather_into_tensor(it: Given) -> Function:
    lengths = it.lengths(it.call.inputs)
    x, output = it.inputs[0], it.outputs[0]
    if it.in_place and x.numel():
        row = output.numel() // output.shape[0]
        start = sum(lengths[: it.me]) // row
        own = output[start : start + x.numel() // row]
        store(own, it.buffers.dense(x))
    send = it.mpi.IN_PLACE if it.in_place else it.buffers.whole(x)
    memory, counts, displacements, kind = it.buffers.parts(output, lengths, written=True)
    if it.by_rank(lengths):
        return "Allgatherv", (send, [memory, counts, displacements, kind])
    return "Allgather", (send, [memory, counts[0], kind])


def _all_gather(it: Given) -> Function:
    send, receive = _gathered(it)
    return "Allgatherv" if len(receive) > 3 else "Allgather", (send, receive)


def _gather(it: Given) -> Function:
    function = "Gatherv" if it.by_rank(it.lengths(it.call.inputs)) else "Gather"
    if it.me == it.call.root:
        return function, (*_gathered(it), it.call.root)
    return function, (it.buffers.whole(it.inputs[0]), None, it.call.root)


def _gathered(it: Given) -> tuple[Any, list[Any]]:
    """Send and receive buffer of a rank that gets a list."""
    lengths, x = it.lengths(it.call.inputs), it.inputs[0]
    joined, starts = flat(lengths, x, gaps=it.by_rank(lengths))
    for output, start, length in zip(it.outputs, starts, lengths, strict=True):
        it.buffers.afterwards(_copy(output, joined[start : start + length]))
    if it.in_place:
        joined[starts[it.me] : starts[it.me] + lengths[it.me]].copy_(it.buffers.dense(x).reshape(-1))
    send = it.mpi.IN_PLACE if it.in_place else it.buffers.whole(x)
    memory, _, kind = it.buffers.whole(joined, written=True)
    return send, [memory, lengths, starts, kind] if it.by_rank(lengths) else [memory, lengths[0], kind]


def _copy(output: torch.Tensor, part: torch.Tensor) -> Callable[[], object]:
    return lambda: store(output, part)


def _scatter(it: Given) -> Function:
    lengths = it.lengths(it.call.outputs)
    receive = it.buffers.whole(it.outputs[0], written=True)
    function = "Scatterv" if it.by_rank(lengths) else "Scatter"
    if it.me != it.call.root:
        return function, (None, receive, it.call.root)
    return function, (_scattered(it, lengths, gaps=it.by_rank(lengths)), receive, it.call.root)


def _scattered(it: Given, lengths: list[int], *, gaps: bool) -> list[Any]:
    """The send buffer of a rank that has a list."""
    joined, starts = flat(lengths, it.outputs[0], gaps=gaps)
    for x, start, length in zip(it.inputs, starts, lengths, strict=True):
        joined[start : start + length].copy_(it.buffers.dense(x).reshape(-1))
    memory, _, kind = it.buffers.whole(joined)
    return [memory, lengths, starts, kind] if gaps else [memory, lengths[0], kind]


def _reduce_scatter(it: Given) -> Function:
    lengths = it.lengths(it.call.outputs)
    joined, _ = flat(lengths, it.outputs[0], gaps=False)
    start = 0
    for x, length in zip(it.inputs, lengths, strict=True):
        joined[start : start + length].copy_(it.buffers.dense(x).reshape(-1))
        start += length
    return _reduce_scattered(it, joined, lengths)


def _reduce_scatter_tensor(it: Given) -> Function:
    x = it.inputs[0]
    joined = it.buffers.dense(x).clone() if it.in_place else it.buffers.dense(x)
    return _reduce_scattered(it, joined.reshape(-1), it.lengths(it.call.outputs))


def _reduce_scattered(it: Given, joined: torch.Tensor, lengths: list[int]) -> Function:
    """In place the result stands at the beginning of the receive buffer, which is as large as the input."""
    memory, _, kind = it.buffers.whole(joined, written=it.in_place)
    if it.in_place:
        it.buffers.afterwards(_copy(it.outputs[0], joined[: lengths[it.me]]))
        send, receive = it.mpi.IN_PLACE, [memory, sum(lengths) if it.by_rank(lengths) else lengths[0], kind]
    else:
        receive = it.buffers.whole(it.buffers.dense(it.outputs[0], written=True))
        send = [memory, sum(lengths) if it.by_rank(lengths) else lengths[0], kind]
    if not it.by_rank(lengths):
        return "Reduce_scatter_block", (send, receive, it.op)
    return "Reduce_scatter", (send, receive, lengths, it.op)


def _all_to_all_single(it: Given) -> Function:
    x, output = it.inputs[0], it.outputs[0]
    matrix = split_matrix(it.case, it.call)
    row = output.numel() // output.shape[0] if output.numel() else x.numel() // x.shape[0] if x.numel() else 0
    sent, received = [count * row for count in matrix[it.me]], [line[it.me] * row for line in matrix]
    equal = not it.by_rank([count for line in matrix for count in line])
    if it.in_place and equal:
        store(output, it.buffers.dense(x))
    memory, counts, displacements, kind = it.buffers.parts(output, received, written=True)
    receive = [memory, counts[0], kind] if equal else [memory, counts, displacements, kind]
    if it.in_place and equal:
        return "Alltoall", (it.mpi.IN_PLACE, receive)
    memory, counts, displacements, kind = it.buffers.parts(x, sent)
    send = [memory, counts[0], kind] if equal else [memory, counts, displacements, kind]
    return "Alltoall" if equal else "Alltoallv", (send, receive)


def _all_to_all(it: Given) -> Function:
    return "Alltoallw", (_addresses(it, it.inputs), _addresses(it, it.outputs, written=True))


def _addresses(it: Given, tensors: Sequence[torch.Tensor], *, written: bool = False) -> list[Any]:
    """A message of MPI_Alltoallw: MPI_BOTTOM, counts, displacements, datatypes with addresses."""
    found = [it.buffers.absolute(tensor, written=written) for tensor in tensors]
    return [it.mpi.BOTTOM, [count for count, _ in found], [0] * len(found), [kind for _, kind in found]]


def _send_recv(it: Given) -> Function:
    if it.me == it.call.root:
        return "Send", (it.buffers.whole(it.inputs[0]), it.call.peer)
    if it.me == it.call.peer:
        return "Recv", (it.buffers.whole(it.outputs[0], written=True), it.call.root)
    return "", ()


def _barrier(it: Given) -> Function:
    return "Barrier", ()


CALLS: Final[Mapping[str, Callable[[Given], Function]]] = {
    "all_reduce": _all_reduce,
    "broadcast": _broadcast,
    "reduce": _reduce,
    "all_gather_into_tensor": _all_gather_into_tensor,
    "all_gather": _all_gather,
    "reduce_scatter_tensor": _reduce_scatter_tensor,
    "reduce_scatter": _reduce_scatter,
    "gather": _gather,
    "scatter": _scatter,
    "all_to_all_single": _all_to_all_single,
    "all_to_all": _all_to_all,
    "send_recv": _send_recv,
    "barrier": _barrier,
}
"""By op of `corpus.case`."""
