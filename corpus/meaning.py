"""What a call means: for every output element, which inputs it comes from. One definition, to run by and to predict by.

An output is described by `Piece`s over its logical elements in row-major order. The definitions are those of MPI and of
torch.distributed's documentation; they are written once, here.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from corpus.case import Call, Case, CaseError, TensorSpec
from corpus.dtypes import DTYPES, DType, Kind
from corpus.payload import exact_limit, limit


@dataclass(frozen=True, slots=True)
class Source:
    """`length` (of the piece) logical elements of `tensor` as `rank` (global) passes it, from `start` on."""

    rank: int
    tensor: str
    start: int


@dataclass(frozen=True, slots=True)
class Piece:
    """Logical elements [start, start + length) of an output: a copy of its one source, or the reduction of all.

    Sources stand in group order. `reduce_op` None is a copy, or of a local computation its op is `local`.
    """

    start: int
    length: int
    sources: tuple[Source, ...]
    reduce_op: str | None = None
    local: str | None = None


@dataclass(frozen=True, slots=True)
class Use:
    """The tensors that one rank passes to one call."""

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


def uses(case: Case, call: Call, rank: int) -> Use:
    """Names of the tensors that `rank` (global) passes to `call`; empty where it takes no part.

    Rooted list calls hold their list at the root only: `gather`'s outputs, `scatter`'s inputs.
    """
    ranks = case.ranks(call)
    if rank not in ranks:
        return Use((), ())
    me = ranks.index(rank)
    if call.op == "send_recv":
        return Use(call.inputs if me == call.root else (), call.outputs if me == call.peer else ())
    inputs = call.inputs if call.op != "scatter" or me == call.root else ()
    outputs = call.outputs if call.op != "gather" or me == call.root else ()
    return Use(inputs, outputs)


def holders(case: Case, name: str) -> tuple[int, ...]:
    """Global ranks on which a tensor exists: those that pass it to some call."""
    everywhere = [(rank, uses(case, call, rank)) for rank in range(case.world.size) for call in case.calls(rank)]
    return tuple(sorted({rank for rank, use in everywhere if name in use.inputs + use.outputs}))


def region(program: tuple[Call, ...], index: int) -> range:
    """Indices of the calls that run as a unit with the program's call `index`: its region, or the call alone."""
    number, first, last = program[index].region, index, index
    if number is not None:
        while first > 0 and program[first - 1].region == number:
            first -= 1
        while last + 1 < len(program) and program[last + 1].region == number:
            last += 1
    return range(first, last + 1)


def overwrites(case: Case) -> bool:
    """Whether some call may write a tensor that an earlier one has used, so that it holds two things in turn."""
    for rank in range(case.world.size):
        used: set[str] = set()
        for call in case.calls(rank):
            use = uses(case, call, rank)
            if used & {*use.outputs}:
                return True
            used |= {*use.inputs, *use.outputs}
    return False


def writes(case: Case, call: Call, rank: int) -> tuple[str, ...]:
    """Outputs that `call` may write on `rank`: those that have pieces there."""
    return tuple(name for name in uses(case, call, rank).outputs if pieces(case, call, rank, name))


def pieces(case: Case, call: Call, rank: int, output: str) -> tuple[Piece, ...]:
    """Where each element of `output` on `rank` comes from; empty where the call leaves it alone.

    `reduce` leaves the buffers of ranks that are not the root alone. A tensor that stands twice in the list of outputs
    has the pieces of each place, in order (the later one wins).
    """
    ranks = case.ranks(call)
    if rank not in ranks or output not in uses(case, call, rank).outputs:
        return ()
    return tuple(_PIECES[call.op](case, call, ranks, ranks.index(rank), output))


def _numel(case: Case, name: str, rank: int) -> int:
    return case.tensor(name).on(rank).numel


def _places(call: Call, output: str) -> Iterator[int]:
    return (index for index, name in enumerate(call.outputs) if name == output)


def _all_reduce(case: Case, call: Call, ranks: tuple[int, ...], me: int, output: str) -> Iterator[Piece]:
    for place in _places(call, output):
        name = call.inputs[place]
        sources = tuple(Source(rank, name, 0) for rank in ranks)
        yield Piece(0, _numel(case, output, ranks[me]), sources, call.reduce_op)


def _reduce(case: Case, call: Call, ranks: tuple[int, ...], me: int, output: str) -> Iterator[Piece]:
    if me == call.root:
        yield from _all_reduce(case, call, ranks, me, output)


def _broadcast(case: Case, call: Call, ranks: tuple[int, ...], me: int, output: str) -> Iterator[Piece]:
    assert call.root is not None
    yield Piece(0, _numel(case, output, ranks[me]), (Source(ranks[call.root], call.inputs[0], 0),))


def _all_gather_into_tensor(case: Case, call: Call, ranks: tuple[int, ...], me: int, output: str) -> Iterator[Piece]:
    start = 0
    for rank in ranks:
        length = _numel(case, call.inputs[0], rank)
        yield Piece(start, length, (Source(rank, call.inputs[0], 0),))
        start += length


def _all_gather(case: Case, call: Call, ranks: tuple[int, ...], me: int, output: str) -> Iterator[Piece]:
    for place in _places(call, output):
        source = Source(ranks[place], call.inputs[0], 0)
        yield Piece(0, _numel(case, output, ranks[me]), (source,))


def _reduce_scatter_tensor(case: Case, call: Call, ranks: tuple[int, ...], me: int, output: str) -> Iterator[Piece]:
    length = _numel(case, output, ranks[me])
    sources = tuple(Source(rank, call.inputs[0], me * length) for rank in ranks)
    yield Piece(0, length, sources, call.reduce_op)


def _reduce_scatter(case: Case, call: Call, ranks: tuple[int, ...], me: int, output: str) -> Iterator[Piece]:
    sources = tuple(Source(rank, call.inputs[me], 0) for rank in ranks)
    yield Piece(0, _numel(case, output, ranks[me]), sources, call.reduce_op)


def _scatter(case: Case, call: Call, ranks: tuple[int, ...], me: int, output: str) -> Iterator[Piece]:
    assert call.root is not None
    yield Piece(0, _numel(case, output, ranks[me]), (Source(ranks[call.root], call.inputs[me], 0),))


def split_matrix(case: Case, call: Call) -> tuple[tuple[int, ...], ...]:
    """Rows of dimension 0 that each group rank of an `all_to_all_single` sends to each: given, or equal."""
    if call.splits is not None:
        return call.splits
    ranks = case.ranks(call)
    return tuple((_rows(case.tensor(call.inputs[0]).on(rank)) // len(ranks),) * len(ranks) for rank in ranks)


def _rows(spec: TensorSpec) -> int:
    return spec.shape[0] if spec.shape else 1


def _all_to_all_single(case: Case, call: Call, ranks: tuple[int, ...], me: int, output: str) -> Iterator[Piece]:
    matrix = split_matrix(case, call)
    row = _row_elements(case.tensor(output).on(ranks[me]))
    start = 0
    for other, rank in enumerate(ranks):
        length = matrix[other][me] * row
        yield Piece(start, length, (Source(rank, call.inputs[0], sum(matrix[other][:me]) * row),))
        start += length


def _row_elements(spec: TensorSpec) -> int:
    elements = 1
    for extent in spec.shape[1:]:
        elements *= extent
    return elements


def _all_to_all(case: Case, call: Call, ranks: tuple[int, ...], me: int, output: str) -> Iterator[Piece]:
    for place in _places(call, output):
        source = Source(ranks[place], call.inputs[me], 0)
        yield Piece(0, _numel(case, output, ranks[me]), (source,))


def _send_recv(case: Case, call: Call, ranks: tuple[int, ...], me: int, output: str) -> Iterator[Piece]:
    assert call.root is not None
    yield Piece(0, _numel(case, output, ranks[me]), (Source(ranks[call.root], call.inputs[0], 0),))


def _local(case: Case, call: Call, ranks: tuple[int, ...], me: int, output: str) -> Iterator[Piece]:
    yield Piece(0, _numel(case, output, ranks[me]), (Source(ranks[me], call.inputs[0], 0),), local=call.op)


def _barrier(case: Case, call: Call, ranks: tuple[int, ...], me: int, output: str) -> Iterator[Piece]:
    return iter(())


_PIECES = {
    "all_reduce": _all_reduce,
    "broadcast": _broadcast,
    "reduce": _reduce,
    "all_gather_into_tensor": _all_gather_into_tensor,
    "all_gather": _all_gather,
    "reduce_scatter_tensor": _reduce_scatter_tensor,
    "reduce_scatter": _reduce_scatter,
    "gather": _all_gather,
    "scatter": _scatter,
    "all_to_all_single": _all_to_all_single,
    "all_to_all": _all_to_all,
    "send_recv": _send_recv,
    "barrier": _barrier,
    "copy": _local,
    "negate": _local,
    "double": _local,
}


def check(case: Case) -> None:
    """Check that the program is legal: list lengths, matching sizes and dtypes, no tensor that is used while another
    call works on it, and no call that reads what has no one legal value. Of an illegal program only that it can be run.

    Raises:
        CaseError: it is not, or this version does not run it; one line that says what and where.
    """
    if case.illegal is not None:
        _check_illegal(case)
        return
    _check_legal(case)
    for tensor in case.tensors:
        if not holders(case, tensor.name):
            raise CaseError(f"tensor {tensor.name}: no call uses it")


def _check_legal(case: Case) -> None:
    for index, call in enumerate(case.program):
        where = f"program[{index}] {call.op}"
        _check_arity(case, call, where)
        _check_sizes(case, call, where)
        _check_flight(case, index, where)
        _check_region(case, index, where)
    Flow(case)


def _check_illegal(case: Case) -> None:
    """What raises on a rank has to be the library: each call can be handed to it. And there is a mistake, where the
    program alone can show it."""
    if case.relations:
        raise CaseError("relations: the results of an illegal program have none")
    for rank in range(case.world.size):
        for index, call in enumerate(case.calls(rank)):
            where = f"rank {rank}, call {index} {call.op}"
            if call.local or call.region is not None:
                raise CaseError(f"{where}: an illegal program has no local computations and no regions")
            _check_arity(case, call, where)
            size = len(case.ranks(call))
            if call.splits is not None and (
                len(call.splits) != size or any(len(row) != size or min(row) < 0 for row in call.splits)
            ):
                raise CaseError(f"{where}: splits must be a {size} x {size} matrix of counts")
            for name in call.inputs:
                if case.tensor(name).on(rank).payload is None:
                    raise CaseError(f"{where}: input {name} has no payload")
    if case.illegal in _PROGRAMS_DIFFER:
        if all(case.calls(rank) == case.program for rank in range(case.world.size)):
            raise CaseError(f"illegal: every rank runs the same program, so they agree about {case.illegal}")
        return
    if case.programs:
        raise CaseError(f"programs: ranks that differ by {case.illegal} run the same program")
    if case.illegal in _LIBRARY_DECIDES:
        _check_legal(case)
        return
    try:
        _check_legal(case)
    except CaseError:
        return
    raise CaseError(f"illegal: nothing is wrong with the program's {case.illegal}")


_PROGRAMS_DIFFER = frozenset({"reduce op", "root", "group", "order", "count"})
"""Mistakes that are made by ranks that run programs of their own."""
_LIBRARY_DECIDES = frozenset({"unsupported dtype", "device"})
"""Mistakes in programs that would be legal for another library."""


def _check_arity(case: Case, call: Call, where: str) -> None:
    size = len(case.ranks(call))
    wanted = _ARITY[call.op]
    for names, count, what in ((call.inputs, wanted[0], "inputs"), (call.outputs, wanted[1], "outputs")):
        need = size if count == "n" else int(count)
        if len(names) != need:
            raise CaseError(f"{where}: {need} {what} in a group of {size}, not {len(names)}")
    if call.op == "send_recv" and call.root == call.peer:
        raise CaseError(f"{where}: a rank does not send to itself")


_ARITY = {
    "all_reduce": ("1", "1"),
    "broadcast": ("1", "1"),
    "reduce": ("1", "1"),
    "all_gather_into_tensor": ("1", "1"),
    "all_gather": ("1", "n"),
    "reduce_scatter_tensor": ("1", "1"),
    "reduce_scatter": ("n", "1"),
    "gather": ("1", "n"),
    "scatter": ("n", "1"),
    "all_to_all_single": ("1", "1"),
    "all_to_all": ("n", "n"),
    "send_recv": ("1", "1"),
    "barrier": ("0", "0"),
    "copy": ("1", "1"),
    "negate": ("1", "1"),
    "double": ("1", "1"),
}


def _check_sizes(case: Case, call: Call, where: str) -> None:
    ranks = case.ranks(call)
    used = [(rank, uses(case, call, rank)) for rank in ranks]
    dtypes = {case.tensor(name).on(rank).dtype for rank, use in used for name in use.inputs + use.outputs}
    if len(dtypes) > 1:
        raise CaseError(f"{where}: one dtype for the whole call, not {', '.join(sorted(dtypes))}")
    if call.local:
        for rank in ranks:
            given, taken = (case.tensor(name).on(rank).shape for name in (call.inputs[0], call.outputs[0]))
            if given != taken:
                raise CaseError(f"{where}: {call.outputs[0]} on rank {rank} has shape {taken}, not {given}")
    if call.op in ("all_to_all_single", "reduce_scatter_tensor"):
        _check_splits(case, call, ranks, where)
    for rank in ranks:
        use = uses(case, call, rank)
        for name in use.outputs:
            length = sum(piece.length for piece in pieces(case, call, rank, name))
            places = 1 if call.op in _WHOLE else use.outputs.count(name)
            if pieces(case, call, rank, name) and length != places * _numel(case, name, rank):
                raise CaseError(f"{where}: {name} on rank {rank} has {_numel(case, name, rank)} elements, not {length}")
            for piece in pieces(case, call, rank, name):
                for source in piece.sources:
                    _check_source(case, call, piece, source, name, where)


_WHOLE = frozenset({"all_gather_into_tensor", "all_to_all_single"})


def _check_source(case: Case, call: Call, piece: Piece, source: Source, name: str, where: str) -> None:
    have = _numel(case, source.tensor, source.rank)
    exact = call.op not in ("all_to_all_single", "reduce_scatter_tensor")
    end = source.start + piece.length
    if end > have or (exact and end != have):
        raise CaseError(
            f"{where}: {source.tensor} on rank {source.rank} has {have} elements, but {name} takes {piece.length}"
        )


def _check_splits(case: Case, call: Call, ranks: tuple[int, ...], where: str) -> None:
    size = len(ranks)
    if call.op == "reduce_scatter_tensor":
        each = _numel(case, call.outputs[0], ranks[0])
        for rank in ranks:
            have, mine = _numel(case, call.inputs[0], rank), _numel(case, call.outputs[0], rank)
            if have != each * size:
                raise CaseError(f"{where}: input of {have} elements on rank {rank} is not {size} x {each}")
            if mine != each:
                raise CaseError(f"{where}: outputs of {each} and, on rank {rank}, of {mine} elements")
        return
    matrix = split_matrix(case, call)
    if len(matrix) != size or any(len(row) != size or min(row) < 0 for row in matrix):
        raise CaseError(f"{where}: splits must be a {size} x {size} matrix of counts")
    for me, rank in enumerate(ranks):
        given, taken = case.tensor(call.inputs[0]).on(rank), case.tensor(call.outputs[0]).on(rank)
        if not given.shape or not taken.shape or given.shape[1:] != taken.shape[1:]:
            raise CaseError(f"{where}: input and output must agree in all dimensions but the first")
        sent, received = sum(matrix[me]), sum(row[me] for row in matrix)
        if sent != given.shape[0] or received != taken.shape[0]:
            raise CaseError(
                f"{where}: splits of rank {rank} send {sent} of {given.shape[0]} rows, "
                f"receive {received} of {taken.shape[0]}"
            )


def _check_flight(case: Case, index: int, where: str) -> None:
    """No tensor is used while an asynchronous call writes it, or written while one uses it."""
    for earlier, flying in enumerate(case.program[:index]):
        if flying.wait is None or flying.wait < index:
            continue
        for rank in range(case.world.size):
            clash = _clash(uses(case, flying, rank), uses(case, case.program[index], rank))
            if clash:
                raise CaseError(f"{where}: {min(clash)} is in use by program[{earlier}] until it is waited for")


def _check_region(case: Case, index: int, where: str) -> None:
    """A region stands in one piece. What its calls give is settled at its end: none uses what another one writes."""
    call = case.program[index]
    if call.region is None:
        return
    if call.local or call.wait is not None:
        raise CaseError(f"{where}: a region has no local computations, and its works are waited for at its end")
    for earlier, other in enumerate(case.program[:index]):
        if other.region != call.region:
            continue
        if earlier not in region(case.program, index):
            raise CaseError(f"{where}: region {call.region} has ended after program[{earlier}]")
        if _unit(case, other) != _unit(case, call):
            raise CaseError(f"{where}: the calls of a region agree in all but their tensors and ranks")
        for rank in case.ranks(call):
            clash = _clash(uses(case, other, rank), uses(case, call, rank))
            if clash:
                raise CaseError(f"{where}: {min(clash)} is in use by program[{earlier}] until the end of the region")


def _unit(case: Case, call: Call) -> tuple[object, ...]:
    """What the calls of a region have in common."""
    dtypes = {case.tensor(name).spec.dtype for name in call.inputs}
    return call.op, call.group, call.reduce_op, call.factor, call.async_op, dtypes


def _clash(first: Use, second: Use) -> set[str]:
    """Tensors that one of two calls writes and the other one uses."""
    return {*first.outputs} & {*second.inputs, *second.outputs} | {*second.outputs} & {*first.inputs}


@dataclass(frozen=True, slots=True)
class Known:
    """What is known of a tensor's elements on one rank at one time.

    `writer` is the call that wrote them last, -1: none. `settled`: they have one legal value. `limit`: integers of at
    most this magnitude (None: not known). `plain`: no NaN, infinity or zero with a sign.
    """

    writer: int
    settled: bool
    limit: int | None
    plain: bool


class Flow:
    """How the contents of tensors come about, call by call.

    A call may read what an earlier one wrote where that has one legal value: a copy, a reduction of integers, a sum or
    product so small that every order gives the same, an extremum of plain numbers. So what every call should give is
    known beforehand, on every rank, without looking at what the others gave.

    Raises:
        CaseError: the program reads what is not settled, or writes what may not be written.
    """

    def __init__(self, case: Case) -> None:
        self._case = case
        self._now: dict[tuple[str, int], Known] = {}
        self._history: dict[tuple[str, int], list[int]] = {}
        for index, call in enumerate(case.program):
            where = f"program[{index}] {call.op}"
            for rank in case.ranks(call):
                self._check(call, rank, where)
            after = {
                (name, rank): self._written(index, call, rank, name)
                for rank in case.ranks(call)
                for name in uses(case, call, rank).outputs
            }
            for place, known in after.items():
                if known is not None:
                    self._now[place] = known
                    self._history.setdefault(place, []).append(index)

    def writer(self, name: str, rank: int, index: int) -> int:
        """Index of the last call before `index` that wrote a tensor on `rank`; -1: it has its first contents."""
        return max((call for call in self._history.get((name, rank), ()) if call < index), default=-1)

    def overwritten(self, name: str, rank: int, index: int) -> int | None:
        """Index of the first call after `index` that writes a tensor on `rank`; None: nobody does."""
        return min((call for call in self._history.get((name, rank), ()) if call > index), default=None)

    def known(self, name: str, rank: int) -> Known:
        """What is known of a tensor after the program."""
        return self._now.get((name, rank)) or _initial(self._case, name, rank)

    def _check(self, call: Call, rank: int, where: str) -> None:
        case = self._case
        use = uses(case, call, rank)
        targets = writes(case, call, rank)
        for name in use.inputs:
            spec = case.tensor(name).on(rank)
            if spec.payload is None and (name, rank) not in self._now:
                raise CaseError(f"{where}: input {name} has no payload")
            known = self.known(name, rank)
            if not known.settled:
                raise CaseError(f"{where}: {name} has no one legal value on rank {rank} after program[{known.writer}]")
        for name in targets:
            spec = case.tensor(name).on(rank)
            if spec.overlaps:
                raise CaseError(f"{where}: output {name} overlaps itself on rank {rank}")
            if spec.payload is None and ((name, rank) in self._now or name in use.inputs or call.local):
                raise CaseError(f"{where}: {name} is returned by the library, so nothing else writes it")
            if len(set(use.inputs) & set(use.outputs)) and call.op not in _IN_PLACE:
                raise CaseError(f"{where}: {name} is both input and output")
        if len(set(targets)) < len(targets):
            raise CaseError(f"{where}: the same tensor stands twice in the outputs")

    def _written(self, index: int, call: Call, rank: int, name: str) -> Known | None:
        """What is known of an output afterwards; None: the call leaves it alone."""
        case = self._case
        found = pieces(case, call, rank, name)
        if not found:
            return Known(index, False, None, False) if call.op == "reduce" else None
        dtype = DTYPES[case.tensor(name).on(rank).dtype]
        parts = [self._piece(call, piece, dtype) for piece in found]
        limits = [limit for _, limit, _ in parts]
        return Known(
            index,
            all(settled for settled, _, _ in parts),
            None if None in limits else max(limit for limit in limits if limit is not None),
            all(plain for _, _, plain in parts),
        )

    def _piece(self, call: Call, piece: Piece, dtype: DType) -> tuple[bool, int | None, bool]:
        """Whether the elements are settled, their limit, whether they are plain."""
        sources = [self.known(source.tensor, source.rank) for source in piece.sources]
        settled, plain = all(known.settled for known in sources), all(known.plain for known in sources)
        limits = [known.limit for known in sources if known.limit is not None]
        limited = len(limits) == len(sources)
        if piece.reduce_op is None:
            return _computed(piece.local, sources[0], dtype)
        if dtype.kind in (Kind.SIGNED, Kind.UNSIGNED):
            return settled and piece.reduce_op not in ("avg", "premul_sum"), None, True
        if piece.reduce_op in ("band", "bor", "bxor"):
            return settled, None, False
        if piece.reduce_op in ("max", "min"):
            return settled and plain and dtype.format is not None, max(limits) if limited else None, plain
        if dtype.format is None or not limited:
            return False, None, False
        total = sum(limits) if piece.reduce_op == "sum" else math.prod(limits)
        exact = total <= exact_limit(dtype) and plain and settled
        if piece.reduce_op == "sum":
            return exact, total, plain
        return exact and piece.reduce_op == "product" and dtype.kind is Kind.FLOAT, total, False


_IN_PLACE = frozenset({"all_reduce", "broadcast", "reduce", "negate", "double"})


def _initial(case: Case, name: str, rank: int) -> Known:
    spec = case.tensor(name).on(rank)
    dtype = DTYPES[spec.dtype]
    if dtype.format is None:
        return Known(-1, True, None, dtype.kind in (Kind.SIGNED, Kind.UNSIGNED))
    plain = spec.payload in ("index", "exact", "wide", "sparse")
    return Known(-1, True, limit(case, name, rank), plain)


def _computed(local: str | None, known: Known, dtype: DType) -> tuple[bool, int | None, bool]:
    if local is None or local == "copy":
        return known.settled, known.limit, known.plain
    if dtype.kind is Kind.SIGNED:
        return known.settled, None, True
    if dtype.format is None:
        return False, None, False
    if local == "negate":
        # Of zero it makes one with a sign. A NaN's sign is not everywhere flipped.
        return known.settled and known.plain, known.limit, False
    twice = None if known.limit is None else 2 * known.limit
    return known.settled and twice is not None and twice <= exact_limit(dtype), twice, known.plain
