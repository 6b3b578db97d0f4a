"""What a case is: a world, named tensors, and a straight line of collective calls over them.

Everything is frozen and validated on construction; `CaseError` says what is wrong and where, in one line. A case holds
no data: each rank rebuilds every payload from the case (`corpus.payload`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from dataclasses import field as _field
from typing import Final

from corpus.dtypes import DTYPES, Kind

WORLD: Final = "world"
"""The name of the group of all ranks, in rank order."""

MAX_WORLD: Final = 64
MAX_GROUPS: Final = 64
MAX_NAME: Final = 64
MAX_TENSORS: Final = 512
MAX_CALLS: Final = 64
MAX_DIMS: Final = 8
MAX_OVERLAPPING: Final = 16_381
"""Elements of a view that overlaps itself; longer ones have no short description of their data."""
DEFAULT_MEMORY: Final = 1 << 30
"""Bytes of tensors that a rank may hold by default (1 GiB)."""

OPS: Final = (
    "all_reduce",
    "broadcast",
    "reduce",
    "all_gather_into_tensor",
    "all_gather",
    "reduce_scatter_tensor",
    "reduce_scatter",
    "gather",
    "scatter",
    "all_to_all_single",
    "all_to_all",
    "send_recv",
    "barrier",
)
"""Collectives, in the order in which a person wants a failure shrunk."""

LOCAL_OPS: Final = ("copy", "negate", "double")
"""Computations of each rank by itself between calls: exact, so that what they give has one legal value."""

LATE_SECONDS: Final = 0.05
"""How long a rank that is late on purpose waits before its call."""

ILLEGAL: Final = (
    "dtype",
    "shape",
    "reduce op",
    "root",
    "group",
    "order",
    "count",
    "splits",
    "output size",
    "aliased outputs",
    "unsupported dtype",
    "device",
)
"""What can be wrong with an illegal program: on what the ranks disagree, or what a call is given."""

REDUCE_OPS: Final = ("sum", "avg", "max", "min", "product", "band", "bor", "bxor", "premul_sum")
REDUCING: Final = frozenset({"all_reduce", "reduce", "reduce_scatter", "reduce_scatter_tensor"})
ROOTED: Final = frozenset({"broadcast", "reduce", "gather", "scatter", "send_recv"})
MEMORY_KINDS: Final = ("cpu", "cpu_pinned", "cuda", "cuda_managed", "cuda_symmetric")
PAYLOADS: Final = ("index", "exact", "wide", "special", "sparse", "poison")
MODES: Final = ("eager", "compiled", "cuda_graph")

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.:/-]*\Z")


class CaseError(ValueError):
    """A case that cannot be: one line that says what is wrong and where."""


def _require(true: bool, message: str) -> None:
    if not true:
        raise CaseError(message)


def _name(value: str, what: str) -> None:
    _require(
        isinstance(value, str) and len(value) <= MAX_NAME and _NAME.match(value) is not None,
        f"{what}: a name is a letter and up to {MAX_NAME - 1} letters, digits or _.:/-, not {value!r:.80}",
    )


def _integer(value: int, what: str, low: int, high: int) -> None:
    _require(type(value) is int and low <= value <= high, f"{what}: an integer from {low} to {high}, not {value!r:.80}")


def _choice(value: str, choices: tuple[str, ...], what: str) -> None:
    _require(value in choices, f"{what}: one of {', '.join(choices)}, not {value!r:.80}")


@dataclass(frozen=True, slots=True)
class Group:
    """A process group: global ranks in group order."""

    name: str
    ranks: tuple[int, ...]

    def __post_init__(self) -> None:
        _name(self.name, "group name")
        _require(self.name != WORLD, f"group name: {WORLD!r} is the group of all ranks")
        _require(
            len(self.ranks) > 0 and len(set(self.ranks)) == len(self.ranks),
            f"group {self.name}: ranks must be distinct and not empty",
        )
        for rank in self.ranks:
            _integer(rank, f"group {self.name}: rank", 0, MAX_WORLD - 1)


@dataclass(frozen=True, slots=True)
class World:
    """`size` ranks and the sub-groups that the calls use."""

    size: int
    groups: tuple[Group, ...] = ()

    def __post_init__(self) -> None:
        _integer(self.size, "world size", 1, MAX_WORLD)
        _require(len(self.groups) <= MAX_GROUPS, f"world: at most {MAX_GROUPS} groups, not {len(self.groups)}")
        names = [group.name for group in self.groups]
        _require(len(set(names)) == len(names), "world: two groups have the same name")
        for group in self.groups:
            _require(
                max(group.ranks) < self.size, f"group {group.name}: rank {max(group.ranks)} in a world of {self.size}"
            )

    def ranks(self, group: str) -> tuple[int, ...]:
        """Return the global ranks of a group in group order.

        Raises:
            CaseError: there is no such group.
        """
        if group == WORLD:
            return tuple(range(self.size))
        for candidate in self.groups:
            if candidate.name == group:
                return candidate.ranks
        raise CaseError(f"group {group!r:.80}: no such group in this world")


@dataclass(frozen=True, slots=True)
class Layout:
    """Where a tensor's elements lie in its base storage, all in elements.

    `strides` None is contiguous (row-major). `before` and `after` elements of the base storage lie outside the view;
    they, and the elements between the strides, belong to somebody else. `conj` and `neg` are torch's lazy bits: the
    logical value is the conjugate, or the negative, of what is stored.
    """

    strides: tuple[int, ...] | None = None
    before: int = 0
    after: int = 0
    conj: bool = False
    neg: bool = False

    def __post_init__(self) -> None:
        for value, what in ((self.before, "before"), (self.after, "after")):
            _integer(value, f"layout: {what}", 0, 1 << 40)
        for stride in self.strides or ():
            _integer(stride, "layout: stride", 0, 1 << 40)
        for bit, what in ((self.conj, "conj"), (self.neg, "neg")):
            _require(type(bit) is bool, f"layout: {what} is true or false")


CONTIGUOUS: Final = Layout()


def contiguous_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Row-major strides in elements, as `torch.empty(shape).stride()` gives them."""
    strides: list[int] = []
    step = 1
    for extent in reversed(shape):
        strides.append(step)
        step *= max(extent, 1)
    return tuple(reversed(strides))


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One rank's tensor: `shape` in elements, `dtype` by torch's name, layout, memory kind, and payload kind.

    A `payload` of None is a tensor that the library allocates and returns; "poison" is an output the caller allocated.
    """

    shape: tuple[int, ...]
    dtype: str = "float32"
    layout: Layout = CONTIGUOUS
    memory: str = "cpu"
    payload: str | None = "index"

    def __post_init__(self) -> None:
        _require(len(self.shape) <= MAX_DIMS, f"shape: at most {MAX_DIMS} dimensions, not {len(self.shape)}")
        for extent in self.shape:
            _integer(extent, "shape: extent", 0, 1 << 40)
        _require(math.prod(max(extent, 1) for extent in self.shape) <= 1 << 40, "shape: more than 2**40 elements")
        _choice(self.dtype, tuple(DTYPES), "dtype")
        _choice(self.memory, MEMORY_KINDS, "memory kind")
        if self.payload is not None:
            _choice(self.payload, PAYLOADS, "payload")
        strides = self.layout.strides
        _require(
            strides is None or len(strides) == len(self.shape),
            f"layout: {len(strides or ())} strides for {len(self.shape)} dimensions",
        )
        kind = DTYPES[self.dtype].kind
        _require(not self.layout.conj or kind is Kind.COMPLEX, f"layout: conj needs a complex dtype, not {self.dtype}")
        _require(
            not self.layout.neg or kind in (Kind.FLOAT, Kind.COMPLEX, Kind.SIGNED),
            f"layout: neg needs a signed dtype, not {self.dtype}",
        )
        _require(
            self.numel <= MAX_OVERLAPPING or not self.overlaps,
            f"layout: a view that overlaps itself has at most {MAX_OVERLAPPING} elements, not {self.numel}",
        )
        _require(
            self.payload is not None or self.layout == CONTIGUOUS, "layout: a returned tensor's layout is the library's"
        )

    @property
    def numel(self) -> int:
        """Number of logical elements."""
        return math.prod(self.shape)

    @property
    def strides(self) -> tuple[int, ...]:
        """Strides in elements."""
        return contiguous_strides(self.shape) if self.layout.strides is None else self.layout.strides

    @property
    def span(self) -> int:
        """Elements of the base storage from the view's first to its last, both included."""
        if self.numel == 0:
            return 0
        return 1 + sum((extent - 1) * stride for extent, stride in zip(self.shape, self.strides, strict=True))

    @property
    def storage_elements(self) -> int:
        """Elements of the whole base storage."""
        return self.layout.before + self.span + self.layout.after

    @property
    def storage_bytes(self) -> int:
        """Bytes of the whole base storage."""
        return self.storage_elements * DTYPES[self.dtype].itemsize

    @property
    def is_contiguous(self) -> bool:
        """Whether the view is row-major and dense (torch's `is_contiguous`), lazy bits aside."""
        if self.numel <= 1:
            return True
        wanted = contiguous_strides(self.shape)
        return all(
            extent == 1 or stride == want for extent, stride, want in zip(self.shape, self.strides, wanted, strict=True)
        )

    @property
    def overlaps(self) -> bool:
        """Whether two logical elements may share memory (conservative: exact for views of dense tensors)."""
        if self.numel <= 1:
            return False
        reach = 0
        for stride, extent in sorted(zip(self.strides, self.shape, strict=True)):
            if extent == 1:
                continue
            if stride <= reach:
                return True
            reach += (extent - 1) * stride
        return False


@dataclass(frozen=True, slots=True)
class Data:
    """Data that a tensor takes from another one, `tensor`: its elements from `start` on, of rank (own + `shift`) modulo
    the world size, times 2**`exponent`. It has the same dtype and payload kind, and no data of another one itself.
    """

    tensor: str
    start: int = 0
    shift: int = 0
    exponent: int = 0

    def __post_init__(self) -> None:
        _name(self.tensor, "data: tensor")
        _integer(self.start, "data: start", 0, 1 << 40)
        _integer(self.shift, "data: shift", 0, MAX_WORLD - 1)
        _integer(self.exponent, "data: exponent", -2, 2)


@dataclass(frozen=True, slots=True)
class Relation:
    """After the program, on every rank on which all of them were written: the elements of `left`, one tensor after
    another, are those of `right` times 2**`exponent`. Where one side has fewer elements, they are the other's first.

    `name` says which relation it is, for a person: "prefix", "repeat".
    """

    name: str
    left: tuple[str, ...]
    right: tuple[str, ...]
    exponent: int = 0

    def __post_init__(self) -> None:
        _require(
            isinstance(self.name, str) and 0 < len(self.name) <= MAX_NAME and self.name.isprintable(),
            f"relation: a short name, not {self.name!r:.80}",
        )
        _require(bool(self.left and self.right), f"relation {self.name}: tensors on both sides")
        for name in self.left + self.right:
            _name(name, f"relation {self.name}: tensor")
        _integer(self.exponent, f"relation {self.name}: exponent", -2, 2)


@dataclass(frozen=True, slots=True)
class Tensor:
    """A named tensor of the program: `spec` on every rank, except where `overrides` gives a rank its own.

    `data`: its data are another tensor's. None: it has data of its own.
    """

    name: str
    spec: TensorSpec
    overrides: tuple[tuple[int, TensorSpec], ...] = ()
    data: Data | None = None

    def __post_init__(self) -> None:
        _name(self.name, "tensor name")
        ranks = [rank for rank, _ in self.overrides]
        _require(ranks == sorted(set(ranks)), f"tensor {self.name}: overrides must be sorted by rank, one a rank")
        for rank in ranks:
            _integer(rank, f"tensor {self.name}: override rank", 0, MAX_WORLD - 1)

    def on(self, rank: int) -> TensorSpec:
        """Return the tensor as `rank` (global) holds it."""
        for candidate, spec in self.overrides:
            if candidate == rank:
                return spec
        return self.spec


@dataclass(frozen=True, slots=True)
class Call:
    """One collective, or one local computation. What it means is defined in `corpus.meaning`.

    `inputs` and `outputs` name tensors; the same names in both are an in-place call. `root`, `peer` and the rows of
    `splits` are ranks *within the group*. `splits[i][j]` is how many rows of dimension 0 group rank i sends to j.
    `factor` belongs to premul_sum. Neighbouring calls of one `region` run as a unit (coalescing); `stream` is the CUDA
    stream.
    `wait`: the work of an asynchronous call is waited for after the program's call of this index has been started
    (None: at once); of works that are due at the same time the newest is waited for first. The rank of the group
    `late` begins the call LATE_SECONDS late.
    """

    op: str
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    group: str = WORLD
    reduce_op: str | None = None
    root: int | None = None
    peer: int | None = None
    splits: tuple[tuple[int, ...], ...] | None = None
    factor: float | None = None
    async_op: bool = False
    region: int | None = None
    stream: int = 0
    wait: int | None = None
    late: int | None = None

    def __post_init__(self) -> None:
        _choice(self.op, (*OPS, *LOCAL_OPS), "op")
        for name in self.inputs + self.outputs:
            _name(name, f"{self.op}: tensor")
        _name(self.group, f"{self.op}: group")
        if self.op in REDUCING:
            _require(self.reduce_op is not None, f"{self.op}: needs a reduce_op")
            _choice(str(self.reduce_op), REDUCE_OPS, f"{self.op}: reduce_op")
        else:
            _require(self.reduce_op is None, f"{self.op}: has no reduce_op")
        _require((self.root is not None) == (self.op in ROOTED), f"{self.op}: root is for {', '.join(sorted(ROOTED))}")
        _require((self.peer is not None) == (self.op == "send_recv"), f"{self.op}: peer is for send_recv")
        _require((self.factor is not None) == (self.reduce_op == "premul_sum"), f"{self.op}: factor is for premul_sum")
        _require(self.factor is None or math.isfinite(self.factor), f"{self.op}: factor is a finite number")
        _require(self.splits is None or self.op == "all_to_all_single", f"{self.op}: splits are for all_to_all_single")
        _require(type(self.async_op) is bool, f"{self.op}: async_op is true or false")
        _integer(self.stream, f"{self.op}: stream", 0, 64)
        if self.region is not None:
            _integer(self.region, f"{self.op}: region", 0, MAX_CALLS)
        if self.wait is not None:
            _require(self.async_op, f"{self.op}: wait is for an asynchronous call")
            _integer(self.wait, f"{self.op}: wait", 0, MAX_CALLS - 1)
        if self.late is not None:
            _integer(self.late, f"{self.op}: late", 0, MAX_WORLD - 1)
        _require(not (self.local and self.async_op), f"{self.op}: a local computation is not asynchronous")

    @property
    def local(self) -> bool:
        """Whether each rank computes by itself."""
        return self.op in LOCAL_OPS


@dataclass(frozen=True, slots=True)
class Case:
    """One program for one backend: everything a rank needs to run it and an oracle needs to predict it.

    `flags` holds the backend's flags that are set explicitly, by name, sorted; an absent flag is unset. `fault` names a
    seeded fault over the backend (our own test of ourselves). `seed` keys the payloads. `relations` say which results
    belong together. An `illegal` program says what is wrong with it, and `programs` then gives ranks, sorted, programs
    of their own.
    """

    backend: str
    world: World
    tensors: tuple[Tensor, ...]
    program: tuple[Call, ...]
    flags: tuple[tuple[str, str], ...] = ()
    fault: str | None = None
    mode: str = "eager"
    seed: int = 0
    relations: tuple[Relation, ...] = ()
    illegal: str | None = None
    programs: tuple[tuple[int, tuple[Call, ...]], ...] = ()
    _by_name: dict[str, Tensor] = _field(init=False, repr=False, compare=False, hash=False, default_factory=dict)

    def __post_init__(self) -> None:
        _require(
            isinstance(self.backend, str) and 0 < len(self.backend) <= 512,
            f"backend: a name or a path, not {self.backend!r:.80}",
        )
        _choice(self.mode, MODES, "mode")
        _integer(self.seed, "seed", 0, (1 << 64) - 1)
        if self.fault is not None:
            _name(self.fault, "fault")
        _require(len(self.tensors) <= MAX_TENSORS, f"tensors: at most {MAX_TENSORS}, not {len(self.tensors)}")
        _require(1 <= len(self.program) <= MAX_CALLS, f"program: 1 to {MAX_CALLS} calls, not {len(self.program)}")
        for tensor in self.tensors:
            _require(tensor.name not in self._by_name, f"tensor {tensor.name}: defined twice")
            for rank, _ in tensor.overrides:
                _require(
                    rank < self.world.size,
                    f"tensor {tensor.name}: override for rank {rank} in a world of {self.world.size}",
                )
            self._by_name[tensor.name] = tensor
        names = [name for name, _ in self.flags]
        _require(names == sorted(set(names)), "flags: must be sorted by name, one value a flag")
        for name, value in self.flags:
            _name(name, "flag name")
            _require(
                isinstance(value, str) and len(value) <= 4096 and "\0" not in value,
                f"flag {name}: a value is a short string",
            )
        self._check_calls(self.program, "program")
        self._check_illegal()
        for tensor in self.tensors:
            self._check_data(tensor)
        _require(len(self.relations) <= MAX_CALLS, f"relations: at most {MAX_CALLS}, not {len(self.relations)}")
        for relation in self.relations:
            for name in relation.left + relation.right:
                _require(name in self._by_name, f"relation {relation.name}: tensor {name!r} is not defined")

    def _check_calls(self, program: tuple[Call, ...], what: str) -> None:
        for index, call in enumerate(program):
            where = f"{what}[{index}] {call.op}"
            size = len(self.world.ranks(call.group))
            for member, role in ((call.root, "root"), (call.peer, "peer"), (call.late, "late")):
                if member is not None:
                    _integer(member, f"{where}: {role}", 0, size - 1)
            if call.wait is not None:
                _integer(call.wait, f"{where}: wait", index, len(program) - 1)
            for name in call.inputs + call.outputs:
                _require(name in self._by_name, f"{where}: tensor {name!r} is not defined")

    def _check_illegal(self) -> None:
        if self.illegal is None:
            _require(not self.programs, "programs: only the ranks of an illegal program have programs of their own")
            return
        _choice(self.illegal, ILLEGAL, "illegal")
        ranks = [rank for rank, _ in self.programs]
        _require(ranks == sorted(set(ranks)), "programs: must be sorted by rank, one a rank")
        for rank, program in self.programs:
            _integer(rank, "programs: rank", 0, self.world.size - 1)
            _require(len(program) <= MAX_CALLS, f"programs: at most {MAX_CALLS} calls, not {len(program)}")
            self._check_calls(program, f"programs of rank {rank}")

    def _check_data(self, tensor: Tensor) -> None:
        if tensor.data is None:
            return
        where = f"tensor {tensor.name}: data"
        _require(tensor.data.tensor in self._by_name, f"{where}: tensor {tensor.data.tensor!r} is not defined")
        origin = self._by_name[tensor.data.tensor]
        _require(origin.data is None, f"{where}: {origin.name} has no data of its own")
        _require(tensor.data.shift < self.world.size, f"{where}: shift {tensor.data.shift} in {self.world.size} ranks")
        kind = DTYPES[tensor.spec.dtype].kind
        _require(
            tensor.data.exponent == 0
            or (kind in (Kind.FLOAT, Kind.COMPLEX) and origin.spec.payload in ("index", "exact", "wide")),
            f"{where}: only plain floats are scaled",
        )
        for rank in range(self.world.size):
            spec, given = tensor.on(rank), origin.on((rank + tensor.data.shift) % self.world.size)
            _require(
                spec.dtype == given.dtype and spec.payload == given.payload and spec.payload is not None,
                f"{where}: dtype and payload of {origin.name}",
            )
            _require(not spec.overlaps and not given.overlaps, f"{where}: a view that overlaps itself has its own")
            _require(tensor.data.start + spec.numel <= given.numel, f"{where}: more elements than {origin.name} has")

    def calls(self, rank: int) -> tuple[Call, ...]:
        """The program as `rank` (global) runs it: its own, where an illegal program has one for it."""
        return dict(self.programs).get(rank, self.program)

    def tensor(self, name: str) -> Tensor:
        """Return a tensor by name.

        Raises:
            KeyError: there is no such tensor.
        """
        return self._by_name[name]

    def ranks(self, call: Call) -> tuple[int, ...]:
        """Global ranks that take part in a call, in group order."""
        return self.world.ranks(call.group)

    def specs(self) -> Iterator[tuple[Tensor, TensorSpec]]:
        """Every tensor with each distinct spec that some rank gives it."""
        for tensor in self.tensors:
            yield tensor, tensor.spec
            for _, spec in tensor.overrides:
                yield tensor, spec

    def memory(self) -> int:
        """Bytes of base storages that the worst rank holds, tensors that the library returns included."""
        return sum(
            max(spec.storage_bytes for spec in (tensor.spec, *(spec for _, spec in tensor.overrides)))
            for tensor in self.tensors
        )
