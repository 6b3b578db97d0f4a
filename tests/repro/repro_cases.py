"""Cases to write scripts for: every op, dtype, layout, payload and kind of failure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from corpus.case import CONTIGUOUS, Call, Case, Group, Layout, Tensor, TensorSpec, World, contiguous_strides
from corpus.dtypes import DTYPES
from corpus.meaning import check

OUR_NAMES = ("cclfuzz", "corpus", "oracles", "strategies", "hypothesis", "fuzz.")


def failure(kind: str, *, call: int = 0, tensor: str | None = None, op: str = "all_reduce") -> dict[str, Any]:
    return {
        "oracle": "numeric",
        "kind": kind,
        "verdict": 1,
        "message": f'{kind}: "it" goes \\wrong\n in more """words""" than one',
        "call": call,
        "op": op,
        "ranks": [0],
        "tensor": tensor,
        "promise": "",
        "observed": "",
        "legal": "",
        "details": {},
    }


@dataclass(frozen=True)
class Entry:
    name: str
    case: Case
    kinds: tuple[str, ...] = ("wrong result", "neighbours changed", "input changed")
    right_on_gloo: bool = True
    calls: tuple[int, ...] = (0,)

    @property
    def failures(self) -> list[dict[str, Any]]:
        return [failure(kind, call=call, op=self.case.program[call].op) for call in self.calls for kind in self.kinds]


def spec(shape: tuple[int, ...], dtype: str = "float32", payload: str | None = "index", **layout: Any) -> TensorSpec:
    return TensorSpec(shape, dtype, Layout(**layout) if layout else CONTIGUOUS, payload=payload)


def op_case(
    op: str,
    shape: tuple[int, ...] = (4,),
    dtype: str = "float32",
    *,
    world: int = 2,
    group: tuple[int, ...] | None = None,
    payload: str = "index",
    layout: Layout = CONTIGUOUS,
    output_layout: Layout | None = None,
    backend: str = "gloo",
    splits: tuple[tuple[int, ...], ...] | None = None,
    **call: Any,
) -> Case:
    """One call of an op whose pieces have `shape`."""
    n = world if group is None else len(group)
    name = {} if group is None else {"group": "part"}
    stacked = (shape[0] * n, *shape[1:]) if shape else (n,)

    def given(shape: tuple[int, ...]) -> TensorSpec:
        return TensorSpec(shape, dtype, layout, payload=payload)

    def taken(shape: tuple[int, ...]) -> TensorSpec:
        return TensorSpec(shape, dtype, layout if output_layout is None else output_layout, payload="poison")

    one, many = ("x",), tuple(f"x{i}" for i in range(n))
    out, outs = ("y",), tuple(f"y{i}" for i in range(n))
    if op in ("all_reduce", "reduce", "broadcast"):
        inputs, outputs, tensors = one, one, [Tensor("x", given(shape))]
    elif op in ("all_gather", "gather"):
        inputs, outputs = one, outs
        tensors = [Tensor("x", given(shape)), *(Tensor(name, taken(shape)) for name in outs)]
    elif op in ("reduce_scatter", "scatter"):
        inputs, outputs = many, out
        tensors = [*(Tensor(name, given(shape)) for name in many), Tensor("y", taken(shape))]
    elif op == "all_to_all":
        inputs, outputs = many, outs
        tensors = [*(Tensor(name, given(shape)) for name in many), *(Tensor(name, taken(shape)) for name in outs)]
    elif op == "all_gather_into_tensor":
        inputs, outputs, tensors = one, out, [Tensor("x", given(shape)), Tensor("y", taken(stacked))]
    elif op == "reduce_scatter_tensor":
        inputs, outputs, tensors = one, out, [Tensor("x", given(stacked)), Tensor("y", taken(shape))]
    elif op == "all_to_all_single" and splits is not None:
        inputs, outputs = one, out
        sent = [TensorSpec((sum(row), *shape[1:]), dtype, layout, payload=payload) for row in splits]
        got = [
            TensorSpec((sum(row[i] for row in splits), *shape[1:]), dtype, layout, payload="poison") for i in range(n)
        ]
        tensors = [
            Tensor("x", sent[0], tuple((i, s) for i, s in enumerate(sent) if i)),
            Tensor("y", got[0], tuple((i, s) for i, s in enumerate(got) if i)),
        ]
    elif op == "all_to_all_single":
        inputs, outputs, tensors = one, out, [Tensor("x", given(stacked)), Tensor("y", taken(stacked))]
    elif op == "send_recv":
        inputs, outputs, tensors = one, out, [Tensor("x", given(shape)), Tensor("y", taken(shape))]
        call.setdefault("peer", 1)
    else:
        inputs, outputs, tensors = (), (), []
    if op in ("reduce", "broadcast", "gather", "scatter", "send_recv"):
        call.setdefault("root", 0 if op == "send_recv" else n - 1)
    if op in ("all_reduce", "reduce", "reduce_scatter", "reduce_scatter_tensor"):
        call.setdefault("reduce_op", "sum")
    groups = () if group is None else (Group("part", group),)
    made = Case(
        backend,
        World(world, groups),
        tuple(tensors),
        (Call(op, inputs, outputs, splits=splits, **name, **call),),
    )
    check(made)
    return made


OPS = (
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
GLOO_NUMBERS = ("float32", "bfloat16", "float16", "float64", "int32", "int64", "int8", "uint8")
SHAPES: tuple[tuple[int, ...], ...] = ((4,), (2, 3), (3,), (100,), (2, 1, 3), (0,))

LAYOUTS: dict[str, tuple[tuple[int, ...], Layout]] = {
    "dense": ((2, 3), CONTIGUOUS),
    "guarded": ((4,), Layout(before=1, after=2)),
    "guarded matrix": ((2, 3), Layout(before=2, after=1)),
    "offset": ((4,), Layout(before=3)),
    "scalar": ((), Layout(before=2, after=1)),
    "every second": ((3,), Layout(strides=(2,))),
    "every third": ((3,), Layout(strides=(3,), before=1, after=1)),
    "column": ((3,), Layout(strides=(4,), before=1, after=2)),
    "rows of a matrix": ((2, 3), Layout(strides=(5, 1), before=1, after=1)),
    "strided rows": ((2, 3), Layout(strides=(8, 2), before=1, after=2)),
    "doubled strides": ((2, 3), Layout(strides=(6, 2))),
    "transposed": ((2, 3), Layout(strides=(1, 2))),
    "guarded and transposed": ((2, 3), Layout(strides=(1, 2), before=1, after=1)),
    "permuted": ((2, 3, 4), Layout(strides=(4, 8, 1))),
    "channels last": ((2, 3, 2, 2), Layout(strides=(12, 1, 6, 3))),
    "as_strided": ((2, 2), Layout(strides=(7, 3), before=1)),
    "odd stride of one": ((1, 3), Layout(strides=(17, 1))),
    "negative": ((3,), Layout(neg=True)),
    "negative and strided": ((3,), Layout(strides=(2,), neg=True, before=1)),
    "empty": ((0, 3), Layout(before=1, after=1)),
    "empty, odd strides": ((2, 0), Layout(strides=(5, 9))),
}
OVERLAPPING: dict[str, tuple[tuple[int, ...], Layout]] = {
    "expanded": ((3,), Layout(strides=(0,))),
    "expanded row": ((2, 3), Layout(strides=(0, 1), before=1, after=1)),
    "expanded column": ((2, 3), Layout(strides=(1, 0))),
    "sliding window": ((3, 2), Layout(strides=(1, 1), before=1)),
}


def ops() -> Iterator[Entry]:
    """Every op: shapes, sub-groups, async, uneven splits."""
    for op in OPS:
        for shape in SHAPES:
            yield Entry(f"{op} {shape}", op_case(op, shape))
        yield Entry(f"{op} async", op_case(op, (2, 2), async_op=True))
        yield Entry(f"{op} of three", op_case(op, (4,), world=3))
        yield Entry(f"{op} in a group", op_case(op, (4,), world=3, group=(2, 0)))
    splits = ((1, 2), (0, 3))
    yield Entry("uneven splits", op_case("all_to_all_single", (1, 3), splits=splits))
    even = op_case("all_to_all_single", (2,), splits=((1, 1), (1, 1)), world=3, group=(2, 0))
    yield Entry("splits in a group", even)


def reductions() -> Iterator[Entry]:
    """Every reduce op over gloo's dtypes and every payload, at two, three and four ranks."""
    for op in ("sum", "avg", "max", "min", "product", "band", "bor", "bxor"):
        for dtype in (*GLOO_NUMBERS, "bool", "complex64"):
            integer = DTYPES[dtype].format is None
            bitwise = op.startswith("b")
            if (bitwise and not integer) or (op == "avg" and integer):
                continue
            if (dtype == "bool" and not bitwise) or (dtype == "complex64" and op not in ("sum", "avg")):
                continue
            for world in (2, 3, 4):
                for payload in ("index", "exact", "wide", "special", "sparse"):
                    case = op_case("all_reduce", (5,), dtype, world=world, payload=payload, reduce_op=op)
                    yield Entry(f"{op} {dtype} {payload} at {world}", case)
    for size in (100, 40_000):
        for payload in ("index", "exact", "wide", "special", "sparse"):
            for dtype in ("float32", "bfloat16", "int32"):
                case = op_case("all_reduce", (size,), dtype, world=3, payload=payload)
                yield Entry(f"sum {dtype} {payload} of {size}", case)


def moves() -> Iterator[Entry]:
    """Every dtype that a script can hold, moved."""
    for dtype in DTYPES:
        if dtype == "float4_e2m1fn_x2":
            continue
        gloo = dtype in (*GLOO_NUMBERS, "bool", "complex64", "complex128")
        for payload in ("index", "exact", "wide", "special", "sparse"):
            for size in (5, 100):
                case = op_case("broadcast", (size,), dtype, payload=payload)
                yield Entry(f"broadcast {dtype} {payload} of {size}", case, right_on_gloo=gloo)


def layouts() -> Iterator[Entry]:
    """Every layout, on both ranks and on one."""
    for name, (shape, layout) in LAYOUTS.items():
        contiguous = spec(shape).is_contiguous and (layout.strides in (None, contiguous_strides(shape)))
        plain = contiguous and not layout.neg
        yield Entry(f"layout {name}", op_case("all_reduce", shape, layout=layout), right_on_gloo=plain)
        case = op_case("broadcast", shape, "int64")
        strange = replace(case.tensors[0].spec, layout=layout)
        mixed = replace(case, tensors=(replace(case.tensors[0], overrides=((1, strange),)),))
        yield Entry(f"layout {name} on one rank", mixed, right_on_gloo=plain)
        yield Entry(f"layout {name} in lists", op_case("all_to_all", shape, layout=layout), right_on_gloo=plain)
    for name, (shape, layout) in OVERLAPPING.items():
        case = op_case("all_gather", shape, layout=layout, output_layout=CONTIGUOUS)
        yield Entry(f"layout {name}", case, right_on_gloo=False)
    for dtype in ("complex64", "complex128"):
        lazy = Layout(conj=True, strides=(2,))
        yield Entry(f"layout conj {dtype}", op_case("broadcast", (3,), dtype, layout=lazy), right_on_gloo=False)


def oddities() -> Iterator[Entry]:
    """Names, flags, several calls, shared tensors, other kinds of failure."""
    x, y = Tensor("rank", spec((3,))), Tensor("in:put/1", spec((3,), "int32"))
    program = (
        Call("all_reduce", ("rank",), ("rank",), reduce_op="max"),
        Call("broadcast", ("in:put/1",), ("in:put/1",), root=1, group="part"),
        Call("barrier"),
    )
    two = Case("gloo", World(3, (Group("part", (0, 2)),)), (x, y), program)
    check(two)
    yield Entry("several calls", two)
    shared = Case(
        "gloo",
        World(2),
        (Tensor("a", spec((3,))), Tensor("b", spec((3,))), Tensor("c", spec((3,), payload="poison"))),
        (
            Call("reduce_scatter", ("a", "a"), ("b",), reduce_op="sum"),
            Call("reduce_scatter", ("a", "a"), ("c",), reduce_op="sum"),
        ),
    )
    check(shared)
    yield Entry("shared tensors", shared)
    agreement = ("ranks disagree", "wrong result", "wrong shape", "wrong dtype")
    yield Entry("agreement", op_case("all_reduce", (3,)), agreement)
    yield Entry("agreement of lists", op_case("all_gather", (3,)), ("ranks disagree",))
    yield Entry("agreement in a group", op_case("all_reduce", (3,), world=3, group=(2, 0)), ("ranks disagree",))
    yield Entry("buffers", op_case("reduce", (3,)), ("buffer changed",), right_on_gloo=False)
    yield Entry("raises", op_case("all_reduce", (3,)), ("refused",))
    yield Entry("raises on some", op_case("scatter", (3,)), ("raised on some ranks", "wrong result"))
    yield Entry("hang", op_case("all_reduce", (3,)), ("hang",))
    yield Entry("crash", op_case("all_gather", (3,)), ("crash",))
    yield Entry("stopped", op_case("barrier"), ("stopped",))
    scaled = op_case("all_reduce", (3,), world=3, reduce_op="premul_sum", factor=0.5, payload="wide", backend="nccl")
    yield Entry("premul_sum", scaled, right_on_gloo=False)
    for dtype in ("float8_e4m3fn", "float8_e5m2", "uint16", "uint32", "uint64"):
        yield Entry(f"sum {dtype}", op_case("all_reduce", (3,), dtype, backend="nccl"), right_on_gloo=False)
    yield Entry("many ranks", op_case("all_reduce", (3,), world=16, payload="wide"), right_on_gloo=False)
    yield Entry("vllm-model", vllm_case(3), ("wrong result", "input changed", "wrong shape", "wrong dtype"))
    yield Entry("vllm-model in a group", vllm_case(3, group=(2, 0)), ("wrong result", "output aliases input"))
    flags = (("VLLM_INPLACE_AR_MIN", "2"),)
    yield Entry("vllm-model in place", vllm_case(3, flags=flags), ("input changed",), right_on_gloo=False)


def vllm_case(
    numel: int,
    *,
    fault: str | None = None,
    flags: tuple[tuple[str, str], ...] = (),
    group: tuple[int, ...] | None = None,
) -> Case:
    tensors = (Tensor("x", spec((numel,))), Tensor("y", spec((numel,), payload=None)))
    world = World(2) if group is None else World(3, (Group("part", group),))
    call = Call("all_reduce", ("x",), ("y",), reduce_op="sum", group="world" if group is None else "part")
    return Case("vllm-model", world, tensors, (call,), flags=flags, fault=fault)


def entries() -> list[Entry]:
    """Cases of calls that are independent."""
    return [*ops(), *reductions(), *moves(), *layouts(), *oddities()]
