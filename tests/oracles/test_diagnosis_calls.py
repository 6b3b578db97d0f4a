"""What is said of data in the wrong place: other ranks', other outputs', and those of other calls of a program."""

import pytest
import torch
from simulated import Simulation, contract

from corpus.case import Call, Case, Group, Layout, Tensor, TensorSpec, World
from corpus.dtypes import DTYPES
from corpus.meaning import check, uses
from oracles.contents import Contents
from oracles.observe import observe

SPEC = TensorSpec((24,), payload="wide")


def program(calls, *, world=3, groups=(), spec=SPEC, big=None, outputs=()):
    """A case of these calls; inputs hold data of their own, the named outputs are allocated by the caller."""
    names = dict.fromkeys(name for call in calls for name in call.inputs + call.outputs)
    poison = TensorSpec(spec.shape, spec.dtype, spec.layout, payload="poison")
    tensors = [Tensor(name, (big or poison) if name in outputs else spec) for name in names]
    case = Case("simulated", World(world, groups), tuple(tensors), tuple(calls))
    check(case)
    return case


class Right:
    """Every rank's buffers with the right results in them, in which a test puts a wrong one."""

    def __init__(self, case):
        self.case = case
        self.simulation = Simulation(case)
        self.contents = Contents(case, contract())
        for rank in range(case.world.size):
            for call in case.program:
                for name in uses(case, call, rank).outputs:
                    self.write(rank, name, self.after(len(case.program), name, rank))

    def after(self, index, name, rank):
        """What a tensor should hold before call `index`."""
        payload = self.contents.before(index, name, rank)
        dtype = getattr(torch, payload.dtype.name)
        return torch.from_numpy(payload.bits()).reshape(-1).view(dtype)

    def given(self, name, rank):
        return self.simulation.inputs[rank][name]

    def write(self, rank, name, value):
        self.simulation.write(rank, name, value)

    def said(self, rank=0):
        reports = observe(self.case, contract(), rank, self.simulation.buffers[rank])
        (entry,) = [entry for entry in reports["numeric"]["outputs"] if entry["wrong"]]
        return entry["explanation"]


def reduced(name, **options):
    return Call("all_reduce", (name,), (name,), reduce_op="sum", **options)


# Sub-groups.


def test_a_mean_of_a_sub_group_is_divided_by_the_size_of_the_world():
    call = Call("all_reduce", ("x",), ("x",), reduce_op="avg", group="g")
    right = Right(program([call], world=4, groups=(Group("g", (3, 1)),)))
    right.write(3, "x", (right.given("x", 3) + right.given("x", 1)) / 4)
    assert right.said(3) == "it is divided by 4, the size of the world, instead of 2"


@pytest.mark.parametrize("ranks", [(1, 2, 3), (3, 1, 2)])
def test_ranks_of_a_sub_group_are_named_by_their_rank_in_the_world(ranks):
    right = Right(program([reduced("x", group="g")], world=4, groups=(Group("g", ranks),)))
    right.write(1, "x", right.given("x", 1) + right.given("x", 3))
    assert right.said(1) == "rank 2's contribution is missing"


def test_a_permuted_group_that_was_sorted():
    call = Call("all_gather_into_tensor", ("x",), ("y",), group="g")
    big = TensorSpec((96,), payload="poison")
    right = Right(program([call], world=4, groups=(Group("g", (2, 0, 3, 1)),), big=big, outputs=("y",)))
    right.write(2, "y", torch.cat([right.given("x", rank) for rank in range(4)]))
    assert right.said(2) == "it holds chunks of all ranks, but in the order 0, 1, 2 and 3"


def test_two_chunks_are_swapped():
    call = Call("all_gather_into_tensor", ("x",), ("y",))
    right = Right(program([call], big=TensorSpec((72,), payload="poison"), outputs=("y",)))
    right.write(0, "y", torch.cat([right.given("x", rank) for rank in (0, 2, 1)]))
    assert right.said() == "it holds rank 2's data where rank 1's belongs, rank 1's data where rank 2's belongs"


# Other outputs.


def test_another_ranks_result():
    call = Call("reduce_scatter", ("x0", "x1", "x2"), ("y",), reduce_op="sum")
    right = Right(program([call], outputs=("y",)))
    right.write(1, "y", sum(right.given("x2", rank) for rank in range(3)))
    assert right.said(1) == "it holds what belongs on rank 2"


def test_another_output_of_the_same_rank():
    call = Call("all_to_all", ("x0", "x1", "x2"), ("y0", "y1", "y2"))
    right = Right(program([call], outputs=("y0", "y1", "y2")))
    right.write(1, "y0", right.given("x1", 2))
    assert right.said(1) == "it holds rank 2's data where rank 0's belongs"


# Several calls.


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int64", "complex64"])
def test_the_result_of_an_earlier_call(dtype):
    spec = TensorSpec((24,), dtype, payload="wide")
    right = Right(program([reduced("x"), reduced("y")], spec=spec))
    right.write(0, "y", right.after(2, "x", 0))
    assert right.said() == "stale: it holds what call 0 left in x"


def test_the_result_does_not_survive_a_later_call():
    right = Right(program([reduced("x"), reduced("y"), reduced("z")]))
    right.write(0, "x", right.after(3, "z", 0))
    assert right.said() == "the result did not survive call 2: it holds what that one gives"


def test_a_shorter_result_that_a_longer_call_overwrites():
    tensors = (Tensor("x", SPEC), Tensor("y", TensorSpec((50,), payload="wide")))
    right = Right(Case("simulated", World(3), tensors, (reduced("x"), reduced("y"))))
    right.write(0, "x", right.after(2, "y", 0)[:24])
    assert right.said() == "the result did not survive call 1: it holds what that one gives"


def gathers():
    calls = [Call("all_gather_into_tensor", (f"x{index}",), (f"y{index}",)) for index in range(2)]
    return Right(program(calls, big=TensorSpec((72,), payload="poison"), outputs=("y0", "y1")))


def test_the_data_of_one_rank_are_those_of_an_earlier_call():
    right = gathers()
    right.write(0, "y1", torch.cat([right.given("x1", 0), right.given("x0", 1), right.given("x1", 2)]))
    assert right.said() == "stale: rank 1's data are those of call 0"


def test_the_data_of_one_rank_are_those_of_a_later_call():
    right = gathers()
    right.write(0, "y0", torch.cat([right.given("x0", 0), right.given("x0", 1), right.given("x1", 2)]))
    assert right.said() == "rank 2's data are those of call 1"


def test_a_contribution_is_that_of_an_earlier_call():
    right = Right(program([reduced("x"), reduced("y")]))
    right.write(0, "y", right.given("y", 0) + right.given("x", 1) + right.given("y", 2))
    assert right.said() == "stale: rank 1's data are those of call 0"


def test_every_contribution_but_the_own_is_that_of_an_earlier_call():
    right = Right(program([reduced("x"), reduced("y")]))
    right.write(0, "y", right.given("y", 0) + right.given("x", 1) + right.given("x", 2))
    assert right.said() == "stale: the data of all ranks but 0 are those of call 0"


def test_what_another_call_is_given():
    right = Right(program([Call("broadcast", ("x",), ("x",), root=0), reduced("z")]))
    right.write(1, "x", right.given("z", 1))
    assert right.said(1) == "it holds what the later call 1 is given in z on this rank"


def test_a_strided_view_of_an_earlier_call():
    spec = TensorSpec((12,), payload="wide", layout=Layout(strides=(2,), before=1))
    right = Right(program([reduced("x"), reduced("y")], spec=spec))
    right.write(0, "y", right.after(2, "x", 0))
    assert right.said() == "stale: it holds what call 0 left in x"


@pytest.mark.parametrize("name", sorted(name for name in DTYPES if name != "float4_e2m1fn_x2"))
def test_shifted_data_of_every_dtype(name):
    call = Call("send_recv", ("x",), ("y",), root=1, peer=0)
    spec = TensorSpec((100,), name, payload="wide")
    right = Right(program([call], spec=spec, outputs=("y",)))
    right.write(0, "y", right.given("x", 1).roll(7))
    assert right.said() == "shifted: it holds elements that belong 7 places earlier"
