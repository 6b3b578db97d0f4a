"""What each collective means, on the smallest examples, and the programs that are refused."""

from __future__ import annotations

from dataclasses import replace

import pytest

from corpus.case import OPS, Call, Case, CaseError, Group, Layout, Tensor, TensorSpec, World
from corpus.meaning import Piece, Source, check, holders, pieces, uses, writes


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

    assert set(OPS) == set(_PIECES) == set(_ARITY)


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
        (replace(case_of(SUM, x=(3,)), program=(SUM, SUM)), "this version runs no chains"),
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
