"""A correct library passes, whatever the collective, dtype, layout and order of operations."""

from itertools import product

import pytest
import torch
from simulated import BITWISE, Simulation, case_of, contract

from corpus.case import Call, Case, Layout, Tensor, TensorSpec, World
from corpus.dtypes import DTYPES, Kind
from oracles.observe import observe

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
)
REDUCING = ("all_reduce", "reduce", "reduce_scatter_tensor", "reduce_scatter")
LAYOUTS = {
    "contiguous": Layout(),
    "offset": Layout(before=3, after=5),
    "strided": Layout(strides=(9, 2), before=1, after=2),
    "transposed": Layout(strides=(1, 3), before=2, after=1),
}
MOVED = tuple(name for name in DTYPES if name != "float4_e2m1fn_x2")
REDUCED = ("float32", "bfloat16", "float16", "float64", "int32", "int64", "int16", "int8", "uint8", "bool")
REDUCE_OPS = ("sum", "avg", "max", "min", "product", "band", "bor", "bxor")
COMPUTED = [
    (name, reduce_op)
    for name, reduce_op in product(REDUCED, REDUCE_OPS)
    if reduce_op not in (BITWISE if DTYPES[name].kind is Kind.FLOAT else ("avg",))
]
"""What torch computes: it has no bitwise operations on floats, and no integer mean."""


def options(op):
    return {"reduce_op": "sum"} if op in REDUCING else {}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("op", "world"), [pair for pair in product(OPS, (1, 2, 3)) if pair != ("send_recv", 1)])
def test_every_collective_in_every_layout(op, world, layout):
    given = LAYOUTS[layout]
    chosen = {"layout": given, "out": given if op in ("scatter", "all_to_all") else "in place"}
    chosen = {} if op in ("reduce_scatter_tensor", "all_to_all_single") else chosen
    case = case_of(op, (3, 4), world=world, **chosen, **options(op))
    assert Simulation(case).run().symptoms() == []


@pytest.mark.parametrize("name", MOVED)
@pytest.mark.parametrize("op", ["broadcast", "all_gather", "scatter"])
def test_every_dtype_is_moved(op, name):
    assert Simulation(case_of(op, (7,), world=3, dtype=name, payload="special")).run().symptoms() == []


@pytest.mark.parametrize("payload", ["index", "exact", "wide", "special", "sparse"])
@pytest.mark.parametrize(("name", "reduce_op"), COMPUTED)
def test_every_reduction_of_every_dtype_and_payload(name, reduce_op, payload):
    case = case_of("all_reduce", (50,), world=3, dtype=name, payload=payload, reduce_op=reduce_op)
    assert Simulation(case).run().symptoms() == []


@pytest.mark.parametrize("lazy", [{"conj": True}, {"neg": True}, {"conj": True, "neg": True}])
@pytest.mark.parametrize("op", ["all_reduce", "broadcast"])
def test_lazy_conjugates_and_negatives(op, lazy):
    case = case_of(op, (5,), dtype="complex64", layout=Layout(before=1, after=1, **lazy), **options(op))
    assert Simulation(case).run().symptoms() == []


@pytest.mark.parametrize("world", [2, 3, 4, 5, 8])
@pytest.mark.parametrize("name", ["float32", "bfloat16"])
@pytest.mark.parametrize("payload", ["wide", "special", "sparse", "exact"])
def test_every_order_of_additions(world, name, payload):
    case = case_of("all_reduce", (400,), world=world, dtype=name, payload=payload, reduce_op="sum")
    assert Simulation(case).run(order=lambda ranks: ranks[1:] + ranks[:1]).symptoms() == []


@pytest.mark.parametrize("out", ["returned", Layout(strides=(2,), before=1, after=1)])
def test_an_output_that_is_not_the_input(out):
    assert Simulation(case_of("all_reduce", (6,), out=out, reduce_op="sum")).run().symptoms() == []


@pytest.mark.parametrize("shape", [(), (0,), (1,), (2, 0, 3)])
def test_tensors_of_no_and_one_element(shape):
    assert Simulation(case_of("all_reduce", shape, reduce_op="sum")).run().symptoms() == []


def test_an_input_that_overlaps_itself():
    case = case_of("all_gather", (4, 3), layout=Layout(strides=(0, 1), before=1))
    assert Simulation(case).run().symptoms() == []


@pytest.mark.parametrize("op", ["all_reduce", "broadcast", "all_gather"])
def test_tensors_longer_than_a_period(op):
    assert Simulation(case_of(op, (50_001,), world=3, **options(op))).run().symptoms() == []


def test_uneven_splits():
    splits = ((1, 3, 2), (0, 4, 2), (5, 0, 1))
    taken = [TensorSpec((sum(row[me] for row in splits), 2), payload="poison") for me in range(3)]
    tensors = (
        Tensor("x", TensorSpec((6, 2), payload="wide")),
        Tensor("y", taken[0], tuple(enumerate(taken))[1:]),
    )
    case = Case("simulated", World(3), tensors, (Call("all_to_all_single", ("x",), ("y",), splits=splits),))
    assert Simulation(case).run().symptoms() == []


def test_several_calls_are_judged_apart():
    names = ("a", "b", "c")
    calls = tuple(Call("all_reduce", (name,), (name,), reduce_op="sum") for name in names)
    tensors = tuple(Tensor(name, TensorSpec((40,), payload="wide")) for name in names)
    assert Simulation(Case("simulated", World(3), tensors, calls)).run().symptoms() == []


def test_what_only_a_bound_judges_is_counted_with_its_detection_power():
    case = case_of("all_reduce", (400,), world=8, dtype="bfloat16", payload="wide", reduce_op="sum")
    simulation = Simulation(case).run(order=lambda ranks: ranks[::-1])
    (report,) = observe(case, contract(), 0, simulation.buffers[0])["numeric"]["outputs"]
    assert (simulation.judge().bound_only == 8 * report["judged"]["bound"], 0 < report["power"] < 1) == (True, True)


def test_what_the_contract_leaves_open_is_counted():
    case = case_of("all_reduce", (400,), world=2, payload="special", reduce_op="max")
    simulation = Simulation(case).run()
    # torch's maximum gives NaN; this library gives the other input, which nobody forbids.
    for rank in range(2):
        simulation.write(rank, "x", torch.fmax(*(simulation.inputs[other]["x"] for other in range(2))))
    judgement = simulation.judge(contract(nan_extremum="unspecified"))
    assert (judgement.failures, judgement.unspecified > 0) == ([], True)


def test_the_detection_power_of_a_case_is_that_of_its_elements():
    case = case_of("all_reduce", (400,), world=8, dtype="bfloat16", payload="wide", reduce_op="sum")
    simulation = Simulation(case).run(order=lambda ranks: ranks[::-1])
    (report,) = observe(case, contract(), 0, simulation.buffers[0])["numeric"]["outputs"]
    assert simulation.judge().power == pytest.approx(report["power"])


def test_what_every_order_explains_alike_has_no_detection_power():
    case = case_of("all_reduce", (400,), world=3, payload="exact", reduce_op="sum")
    assert Simulation(case).run().judge().power is None
