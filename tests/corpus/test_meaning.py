"""What each collective means, on the smallest examples, and the programs that are refused."""

from __future__ import annotations

from dataclasses import replace

import pytest

from corpus.case import LOCAL_OPS, OPS, Call, Case, CaseError, Group, Layout, Tensor, TensorSpec, World
from corpus.meaning import Flow, Known, Piece, Source, check, holders, pieces, uses, writes


def case_of(call: Call, world: int = 2, **shapes: tuple[int, ...]) -> Case:
    outputs = [name for name in call.outputs if name not in call.inputs]
    tensors = tuple(
        Tensor(name, TensorSpec(shape, payload="poison" if name in outputs else "index"))
        for name, shape in shapes.items()
    )
    return Case("gloo", World(world, (Group("g0", (0, 2)),) if world > 2 else ()), tensors, (call,))


def only(case: Case, rank: int, name: str) -> Piece:
    (piece,) = pieces(case, case.program[0], rank, name)
    return piece


def test_all_reduce_takes_every_rank_in_group_order() -> None:
    call = Call("all_reduce", ("x",), ("x",), group="g0", reduce_op="sum")
    case = case_of(call, 3, x=(4,))
    assert only(case, 2, "x") == Piece(0, 4, (Source(0, "x", 0), Source(2, "x", 0)), "sum")
    assert pieces(case, call, 1, "x") == ()
    assert holders(case, "x") == (0, 2)


def test_broadcast_takes_the_root_of_the_group() -> None:
    case = case_of(Call("broadcast", ("x",), ("x",), group="g0", root=1), 3, x=(4,))
    assert only(case, 0, "x") == Piece(0, 4, (Source(2, "x", 0),))


def test_reduce_writes_the_root_only() -> None:
    call = Call("reduce", ("x",), ("x",), reduce_op="max", root=1)
    case = case_of(call, x=(4,))
    assert only(case, 1, "x").reduce_op == "max"
    assert writes(case, call, 0) == ()


def test_all_gather_into_tensor_concatenates_in_rank_order() -> None:
    call = Call("all_gather_into_tensor", ("x",), ("out",))
    case = case_of(call, x=(3,), out=(6,))
    assert pieces(case, call, 0, "out") == (Piece(0, 3, (Source(0, "x", 0),)), Piece(3, 3, (Source(1, "x", 0),)))


def test_all_gather_gives_each_rank_its_place_in_the_list() -> None:
    case = case_of(Call("all_gather", ("x",), ("a", "b")), x=(3,), a=(3,), b=(3,))
    assert only(case, 0, "b") == Piece(0, 3, (Source(1, "x", 0),))


def test_reduce_scatter_tensor_gives_each_rank_its_chunk() -> None:
    case = case_of(Call("reduce_scatter_tensor", ("x",), ("out",), reduce_op="sum"), x=(6,), out=(3,))
    assert only(case, 1, "out") == Piece(0, 3, (Source(0, "x", 3), Source(1, "x", 3)), "sum")


def test_reduce_scatter_gives_each_rank_its_element_of_the_list() -> None:
    case = case_of(Call("reduce_scatter", ("a", "b"), ("out",), reduce_op="sum"), a=(3,), b=(3,), out=(3,))
    assert only(case, 1, "out") == Piece(0, 3, (Source(0, "b", 0), Source(1, "b", 0)), "sum")


def test_gather_holds_its_outputs_at_the_root_only() -> None:
    call = Call("gather", ("x",), ("a", "b"), root=1)
    case = case_of(call, x=(3,), a=(3,), b=(3,))
    assert only(case, 1, "a") == Piece(0, 3, (Source(0, "x", 0),))
    assert uses(case, call, 0).outputs == ()
    assert holders(case, "a") == (1,)


def test_scatter_holds_its_inputs_at_the_root_only() -> None:
    call = Call("scatter", ("a", "b"), ("out",), root=0)
    case = case_of(call, a=(3,), b=(3,), out=(3,))
    assert only(case, 1, "out") == Piece(0, 3, (Source(0, "b", 0),))
    assert holders(case, "b") == (0,)


def test_all_to_all_single_follows_the_matrix_of_splits() -> None:
    call = Call("all_to_all_single", ("x",), ("out",), splits=((1, 2), (3, 0)))
    case = case_of(call, x=(3, 2), out=(4, 2))
    spec = TensorSpec((2, 2), payload="poison")
    case = replace(case, tensors=(case.tensors[0], replace(case.tensors[1], overrides=((1, spec),))))
    check(case)
    assert pieces(case, call, 0, "out") == (Piece(0, 2, (Source(0, "x", 0),)), Piece(2, 6, (Source(1, "x", 0),)))
    assert pieces(case, call, 1, "out") == (Piece(0, 4, (Source(0, "x", 2),)), Piece(4, 0, (Source(1, "x", 6),)))


def test_all_to_all_single_without_splits_is_equal() -> None:
    call = Call("all_to_all_single", ("x",), ("out",))
    case = case_of(call, x=(4,), out=(4,))
    assert pieces(case, call, 1, "out") == (Piece(0, 2, (Source(0, "x", 2),)), Piece(2, 2, (Source(1, "x", 2),)))


def test_all_to_all_transposes_the_lists() -> None:
    case = case_of(Call("all_to_all", ("a", "b"), ("c", "d")), a=(3,), b=(3,), c=(3,), d=(3,))
    assert only(case, 1, "c") == Piece(0, 3, (Source(0, "b", 0),))


def test_send_recv_has_one_sender_and_one_receiver() -> None:
    call = Call("send_recv", ("x",), ("y",), root=1, peer=0)
    case = case_of(call, x=(3,), y=(3,))
    assert only(case, 0, "y") == Piece(0, 3, (Source(1, "x", 0),))
    assert (holders(case, "x"), holders(case, "y")) == ((1,), (0,))


def test_every_op_has_a_meaning() -> None:
    from corpus.meaning import _ARITY, _PIECES

    assert {*OPS, *LOCAL_OPS} == set(_PIECES) == set(_ARITY)


SUM = Call("all_reduce", ("x",), ("x",), reduce_op="sum")


@pytest.mark.parametrize(
    ("case", "says"),
    [
        (case_of(Call("all_gather", ("x",), ("a",)), x=(3,), a=(3,)), "2 outputs in a group of 2, not 1"),
        (case_of(Call("all_gather_into_tensor", ("x",), ("out",)), x=(3,), out=(5,)), "has 5 elements, not 6"),
        (
            case_of(Call("reduce_scatter_tensor", ("x",), ("out",), reduce_op="sum"), x=(5,), out=(3,)),
            "input of 5 elements on rank 0 is not 2 x 3",
        ),
        (case_of(Call("all_to_all_single", ("x",), ("out",)), x=(3,), out=(3,)), "splits of rank 0 send 2 of 3 rows"),
        (
            case_of(Call("all_to_all_single", ("x",), ("out",), splits=((1,), (2,))), x=(3,), out=(3,)),
            "a 2 x 2 matrix",
        ),
        (case_of(Call("send_recv", ("x",), ("y",), root=1, peer=1), x=(3,), y=(3,)), "does not send to itself"),
        (
            replace(case_of(SUM, x=(3,)), tensors=(Tensor("x", TensorSpec((3,), layout=Layout((0,)))),)),
            "output x overlaps itself",
        ),
        (
            replace(case_of(SUM, x=(3,)), tensors=(Tensor("x", TensorSpec((3,)), ((1, TensorSpec((3,), "int32")),)),)),
            "one dtype for the whole call",
        ),
        (
            replace(case_of(SUM, x=(3,)), tensors=(Tensor("x", TensorSpec((3,)), ((1, TensorSpec((4,))),)),)),
            "has 4 elements, but x takes 3",
        ),
        (replace(case_of(SUM, x=(3,)), tensors=(*case_of(SUM, x=(3,), y=(1,)).tensors,)), "tensor y: no call uses it"),
    ],
)
def test_an_illegal_program_is_refused(case: Case, says: str) -> None:
    with pytest.raises(CaseError, match=says):
        check(case)


def flow_of(*calls: Call, world: int = 2, dtype: str = "float32", payload: str = "index") -> Flow:
    """The flow of calls over "x", "y" (outputs of x's shape) and "z" (twice as long)."""
    shapes = {"x": (4,), "y": (4,), "z": (4 * world,)}
    names = {name for call in calls for name in call.inputs + call.outputs}
    tensors = tuple(
        Tensor(name, TensorSpec(shape, dtype, payload=payload if name == "x" else "poison"))
        for name, shape in shapes.items()
        if name in names
    )
    return Flow(Case("gloo", World(world), tensors, calls))


GATHER = Call("all_gather_into_tensor", ("x",), ("z",))
COPY = Call("copy", ("x",), ("y",))
NEGATE = Call("negate", ("x",), ("x",))
DOUBLE = Call("double", ("x",), ("x",))


def by(op: str) -> Call:
    return replace(SUM, reduce_op=op)


@pytest.mark.parametrize(
    ("calls", "fields", "settled"),
    [
        ((GATHER,), {"payload": "special"}, True),
        ((SUM,), {}, True),
        ((SUM,), {"payload": "exact", "dtype": "bfloat16"}, True),
        ((SUM,), {"payload": "wide"}, False),
        ((SUM,), {"payload": "sparse"}, False),
        ((SUM,), {"payload": "wide", "dtype": "int32"}, True),
        ((by("avg"),), {}, False),
        ((by("max"),), {"payload": "wide"}, True),
        ((by("max"),), {"payload": "special"}, False),
        ((by("max"),), {"payload": "special", "dtype": "int8"}, True),
        ((by("product"),), {}, True),
        ((by("product"),), {"dtype": "complex64"}, False),
        ((by("band"),), {"payload": "wide", "dtype": "int32"}, True),
        ((Call("reduce", ("x",), ("x",), reduce_op="sum", root=1),), {}, False),
        ((NEGATE,), {"payload": "wide"}, True),
        ((NEGATE,), {"payload": "special"}, False),
        ((NEGATE,), {"dtype": "uint8"}, False),
        ((DOUBLE,), {}, True),
        ((DOUBLE,), {"payload": "wide"}, False),
        ((DOUBLE,), {"dtype": "int8", "payload": "wide"}, True),
    ],
)
def test_what_is_settled(calls: tuple[Call, ...], fields: dict[str, str], settled: bool) -> None:
    flow = flow_of(*calls, **fields)
    name = calls[-1].outputs[0]
    assert flow.known(name, 0).settled is settled
    read = replace(GATHER, inputs=(name,)) if name == "x" else Call("broadcast", (name,), (name,), root=0)
    if settled:
        flow_of(*calls, read, **fields)
    else:
        with pytest.raises(CaseError, match=r"x has no one legal value on rank 0 after program\[0\]"):
            flow_of(*calls, read, **fields)


def test_the_limit_grows_until_a_sum_rounds() -> None:
    """bfloat16 holds every integer up to 256: "index" data of four elements on two ranks goes up to 9."""
    limits = [flow_of(*(SUM,) * count, dtype="bfloat16").known("x", 0) for count in range(1, 6)]
    assert [known.limit for known in limits] == [18, 36, 72, 144, 288]
    assert [known.settled for known in limits] == [True] * 4 + [False]


def test_a_negated_zero_has_a_sign() -> None:
    negated = flow_of(NEGATE).known("x", 0)
    assert negated == Known(0, settled=True, limit=9, plain=False)
    # Of zeros with signs the order decides what is left.
    assert not flow_of(NEGATE, SUM).known("x", 0).settled


def test_who_wrote_last_and_who_writes_next() -> None:
    flow = flow_of(GATHER, SUM, COPY, Call("broadcast", ("x",), ("x",), root=0))
    assert [flow.writer("x", 0, index) for index in range(5)] == [-1, -1, 1, 1, 3]
    assert [flow.overwritten("x", 0, index) for index in range(-1, 4)] == [1, 1, 3, 3, None]
    assert flow.overwritten("z", 1, 0) is None


ASYNC = replace(SUM, async_op=True)
OTHER = replace(GATHER, inputs=("y",))
BROADCAST = Call("broadcast", ("y",), ("y",), root=0)


@pytest.mark.parametrize(
    ("calls", "says"),
    [
        ((replace(ASYNC, wait=1), GATHER), r"program\[1\] all_gather_into_tensor: x is in use by program\[0\]"),
        ((replace(ASYNC, wait=2), BROADCAST, SUM), r"program\[2\] all_reduce: x is in use by program\[0\]"),
        ((replace(GATHER, async_op=True, wait=1), SUM), r"program\[1\] all_reduce: x is in use by program\[0\]"),
        ((replace(GATHER, async_op=True, wait=1), DOUBLE), r"program\[1\] double: x is in use by program\[0\]"),
        ((replace(GATHER, async_op=True, wait=1), OTHER), r"z is in use by program\[0\]"),
    ],
)
def test_no_tensor_is_touched_while_a_call_works_on_it(calls: tuple[Call, ...], says: str) -> None:
    shapes = {"x": (4,), "y": (4,), "z": (8,)}
    names = {name for call in calls for name in call.inputs + call.outputs}
    tensors = tuple(Tensor(name, TensorSpec(shape)) for name, shape in shapes.items() if name in names)
    with pytest.raises(CaseError, match=says):
        check(Case("gloo", World(2), tensors, calls))


def test_two_calls_may_read_a_tensor_at_once() -> None:
    tensors = (Tensor("x", TensorSpec((4,))), Tensor("z", TensorSpec((8,))), Tensor("y", TensorSpec((8,))))
    check(Case("gloo", World(2), tensors, (replace(GATHER, async_op=True, wait=1), replace(GATHER, outputs=("y",)))))
