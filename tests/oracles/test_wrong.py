"""Each wrong behaviour is reported by the oracle meant for it, under the kind and with the explanation that name it.

The behaviours are those of public bugs; each test says nothing of any other oracle but that it stays silent.
"""

from dataclasses import replace

import pytest
import torch
from simulated import Simulation, case_of, combine, contract, flat

from corpus.case import Layout

WRONG = ("numeric", "wrong result")


def only(simulation, promised=None):
    """The one failure of a simulation."""
    failures = simulation.judge(promised).failures
    assert len(failures) == 1, [str(failure) for failure in failures]
    return failures[0]


def explanation(simulation):
    return only(simulation).details["explanation"]


def reduced_by(world, function, *, shape=(40,), ranks=None, op="sum", **options):
    """An all_reduce of which some ranks (all, unless given) hold `function(inputs, rank)`."""
    simulation = Simulation(case_of("all_reduce", shape, world=world, reduce_op=op, **options)).run()
    inputs = [mine["x"] for mine in simulation.inputs]
    for rank in ranks if ranks is not None else range(world):
        simulation.write(rank, "x", function(inputs, rank))
    return simulation


# What a reduction can do wrong.


def test_no_reduction():
    simulation = reduced_by(2, lambda inputs, rank: inputs[rank])
    assert explanation(simulation) == "no reduction: it holds this rank's own input"


@pytest.mark.parametrize("lost", [0, 1, 2])
def test_a_missing_contribution(lost):
    simulation = reduced_by(3, lambda inputs, rank: sum(part for place, part in enumerate(inputs) if place != lost))
    assert explanation(simulation) == f"rank {lost}'s contribution is missing"


def test_a_missing_contribution_among_eight_ranks():
    simulation = reduced_by(8, lambda inputs, rank: sum(inputs[1:]), payload="sparse")
    assert "rank 0's contribution is missing" in explanation(simulation)


def test_a_doubled_contribution():
    simulation = reduced_by(3, lambda inputs, rank: sum(inputs) + inputs[1])
    assert explanation(simulation) == "rank 1's contribution is counted twice"


@pytest.mark.parametrize(
    ("asked", "done"), [("avg", "sum"), ("sum", "avg"), ("min", "max"), ("max", "min"), ("product", "avg")]
)
def test_another_reduce_op(asked, done):
    simulation = reduced_by(3, lambda inputs, rank: combine(done, inputs), op=asked)
    assert explanation(simulation) == f"another reduce op: it holds {done}, not {asked}"


def test_a_sum_through_a_smaller_format():
    def through_float16(inputs, rank):
        return sum(part.to(torch.float16) for part in inputs).to(torch.bfloat16)

    simulation = reduced_by(2, through_float16, dtype="bfloat16", payload="special", shape=(400,))
    assert explanation(simulation) == "the sum went through float16"


def test_an_accumulator_of_lower_precision():
    def through_bfloat16(inputs, rank):
        return sum(part.to(torch.bfloat16) for part in inputs).to(torch.float32)

    assert explanation(reduced_by(2, through_bfloat16)) == "the sum went through bfloat16"


def test_one_bit():
    simulation = Simulation(case_of("all_reduce", (40,), reduce_op="sum")).run()
    value = flat(simulation.buffers[1]["x"])
    value.view(torch.int32)[17] ^= 1
    simulation.write(1, "x", value)
    failure = only(simulation)
    assert (failure.ranks, failure.details["ranks"]["1"]["first"][0]["index"]) == ((1,), 17)


def test_one_bit_in_millions():
    simulation = Simulation(case_of("all_reduce", (4_194_304,), reduce_op="sum")).run()
    view = simulation.buffers[0]["x"].view
    view.view(torch.int32)[4_194_303] ^= 1
    assert only(simulation).details["ranks"]["0"]["first"][0]["index"] == 4_194_303


def test_the_tail_is_not_written():
    def tail(inputs, rank):
        result = sum(inputs)
        result[32:] = inputs[rank][32:]
        return result

    wanted = "the last 8 elements were not reduced: they hold this rank's own input"
    assert explanation(reduced_by(2, tail)) == wanted


def test_shifted_by_a_few():
    simulation = reduced_by(2, lambda inputs, rank: sum(inputs).roll(3))
    assert explanation(simulation) == "shifted: it holds elements that belong 3 places earlier"


def test_shifted_by_a_period():
    simulation = reduced_by(2, lambda inputs, rank: sum(inputs).roll(16_381), shape=(70_000,))
    assert only(simulation).kind == "wrong result"


def test_the_mean_divides_by_another_number():
    assert only(reduced_by(3, lambda inputs, rank: sum(inputs) / 40, op="avg")).kind == "wrong result"


def test_integers_wrap_and_do_not_saturate():
    def saturate(inputs, rank):
        return sum(part.to(torch.int64) for part in inputs).clamp(-128, 127).to(torch.int8)

    assert only(reduced_by(2, saturate, dtype="int8")).kind == "wrong result"


def test_a_count_is_no_bool():
    simulation = Simulation(case_of("all_reduce", (40,), dtype="bool", reduce_op="sum")).run()
    count = sum(mine["x"].to(torch.uint8) for mine in simulation.inputs)
    simulation.buffers[0]["x"].base.view(torch.uint8).copy_(count)
    assert "neither True nor False" in only(simulation).observed


def test_every_element_wrong_in_many_ways_is_not_counted_to_the_end():
    simulation = Simulation(case_of("all_reduce", (1_000_000,), reduce_op="sum")).run()
    generator = torch.Generator().manual_seed(0)
    simulation.buffers[0]["x"].view.copy_(torch.rand(1_000_000, generator=generator))
    assert "at least" in only(simulation).message


def test_ranks_are_merged_into_one_failure():
    assert only(reduced_by(4, lambda inputs, rank: inputs[rank])).ranks == (0, 1, 2, 3)


# What a copy can do wrong.


def test_nothing_is_written():
    simulation = Simulation(case_of("all_gather", (8,), world=3))
    for rank in (0, 1):
        for name, value in {f"y{other}": simulation.inputs[other]["x"] for other in range(3)}.items():
            simulation.write(rank, name, value)
    failure = only(simulation)
    wanted = "it was not written: it holds what the output held before the call"
    assert (failure.ranks, failure.details["explanation"]) == ((2,), wanted)


def test_a_returned_tensor_is_not_written():
    simulation = Simulation(case_of("all_reduce", (6,), out="returned", reduce_op="sum")).run()
    returned = simulation.buffers[0]["y"].returned
    returned.view(torch.uint8).fill_(0xA5)
    assert explanation(simulation) == "it was not written: it holds what freed memory was filled with"


def test_ranks_are_swapped():
    simulation = Simulation(case_of("all_gather_into_tensor", (8,), world=3)).run()
    x = [mine["x"] for mine in simulation.inputs]
    simulation.write(1, "y", torch.cat([x[0], x[2], x[1]]))
    wanted = "it holds rank 2's data where rank 1's belongs, rank 1's data where rank 2's belongs"
    assert explanation(simulation) == wanted


def test_a_group_rank_is_taken_for_another():
    simulation = Simulation(case_of("broadcast", (8,), world=3, root=1)).run()
    for rank in range(3):
        simulation.write(rank, "x", simulation.inputs[0]["x"])
    assert explanation(simulation).endswith("it holds rank 0's data where rank 1's belongs")


def test_splits_are_off_by_one():
    simulation = Simulation(case_of("all_to_all_single", (4,), world=2)).run()
    x = [mine["x"] for mine in simulation.inputs]
    simulation.write(0, "y", torch.cat([x[0][1:5], x[1][1:5]]))
    assert explanation(simulation) == "shifted: it holds what its sources have 1 place later"


@pytest.mark.parametrize(
    ("returned", "kind"),
    [
        (torch.zeros(7), "wrong shape"),
        (torch.zeros(2, 3), "wrong shape"),
        (torch.zeros(6, dtype=torch.float64), "wrong dtype"),
        (None, "wrong shape"),
    ],
)
def test_another_tensor_is_returned(returned, kind):
    simulation = Simulation(case_of("all_reduce", (6,), out="returned", reduce_op="sum")).run()
    simulation.buffers[1]["y"].returned = returned
    assert only(simulation).kind == kind


# What happens to memory that is not the output.


STRIDED = Layout(strides=(2,), before=4, after=4)


def as_if_dense(simulation, name="x"):
    """The dense blocks of memory that begin where the views do, by rank, and a way to write one back."""
    return [mine[name].base[4 : 4 + mine[name].spec.numel] for mine in simulation.buffers]


def test_a_view_is_taken_for_a_dense_block():
    simulation = Simulation(case_of("all_reduce", (6,), layout=STRIDED, reduce_op="sum"))
    total = sum(block.clone() for block in as_if_dense(simulation))
    for block in as_if_dense(simulation):
        block.copy_(total)
    failures = simulation.judge().failures
    assert [(failure.oracle, failure.kind) for failure in failures] == [WRONG, ("preservation", "neighbours changed")]
    assert "base storage" in failures[0].details["explanation"]
    assert "between its strides" in failures[1].message


def test_a_view_is_read_as_a_dense_block():
    simulation = Simulation(case_of("all_gather_into_tensor", (6,), layout=STRIDED))
    blocks = torch.cat(as_if_dense(simulation))
    for rank in range(2):
        simulation.write(rank, "y", blocks)
    assert explanation(simulation) == "it holds the base storage's elements instead of the view's"


@pytest.mark.parametrize(
    ("place", "where"), [(3, "before it"), (5, "between its strides"), (15, "after it"), (0, "before it")]
)
def test_a_neighbour_is_overwritten(place, where):
    simulation = Simulation(case_of("all_reduce", (6,), layout=STRIDED, reduce_op="sum")).run()
    simulation.buffers[1]["x"].base[place] = 1.0
    failure = only(simulation)
    assert (failure.kind, where in failure.message) == ("neighbours changed", True)


@pytest.mark.parametrize("place", [1, 2 + 40])
def test_a_neighbour_of_a_dense_view_is_overwritten(place):
    layout = Layout(before=2, after=2)
    simulation = Simulation(case_of("all_reduce", (40,), layout=layout, reduce_op="sum")).run()
    simulation.buffers[0]["x"].base[place] = 1.0
    assert only(simulation).kind == "neighbours changed"


@pytest.mark.parametrize("layout", [Layout(), STRIDED, Layout(neg=True), Layout(strides=(2,), neg=True)])
def test_an_input_is_clobbered(layout):
    simulation = Simulation(case_of("all_gather", (6,), layout=layout)).run()
    simulation.buffers[1]["x"].view[3] = 1.0
    failure = only(simulation)
    assert (failure.oracle, failure.kind, failure.ranks) == ("preservation", "input changed", (1,))


def in_place_all_reduce(size=6):
    """An out-of-place all_reduce that reduces its input and returns it."""
    simulation = Simulation(case_of("all_reduce", (size,), out="returned", reduce_op="sum"))
    total = sum(mine["x"] for mine in simulation.inputs)
    for mine in simulation.buffers:
        mine["x"].view.copy_(total)
        mine["y"].returned = mine["x"].view
    return simulation


def test_an_input_is_reduced_in_place_and_returned():
    failures = in_place_all_reduce().judge().failures
    assert [failure.kind for failure in failures] == ["input changed", "output aliases input"]
    assert "hold the call's result" in failures[0].message


@pytest.mark.parametrize(("size", "kinds"), [(5, 2), (6, 0), (7, 0)])
def test_an_input_may_be_reduced_in_place_from_the_size_that_the_contract_says(size, kinds):
    assert len(in_place_all_reduce(size).symptoms(contract(in_place_from=6))) == kinds


def test_returned_tensors_share_their_elements():
    simulation = Simulation(case_of("all_gather", (6,), out="returned")).run()
    mine = simulation.buffers[0]
    shared = torch.cat([mine["y0"].returned, mine["y1"].returned])
    mine["y0"].returned, mine["y1"].returned = shared[:6], shared[6:]
    assert simulation.symptoms() == []
    mine["y1"].returned = mine["y0"].returned
    assert ("preservation", "output aliases another tensor") in simulation.symptoms()


def test_a_returned_tensor_shares_the_storage_of_another_calls_input():
    simulation = Simulation(case_of("all_gather", (6,), out="returned")).run()
    mine = simulation.buffers[0]
    mine["y0"].returned = mine["x"].view
    assert simulation.symptoms() == [("preservation", "output aliases input")]


def partial_sums():
    """A reduce that leaves partial sums in the buffers of the ranks that are not the root."""
    simulation = Simulation(case_of("reduce", (6,), world=3, root=1, reduce_op="sum")).run()
    simulation.write(2, "x", simulation.inputs[0]["x"] + simulation.inputs[2]["x"])
    return simulation


def test_a_buffer_of_another_rank_than_the_root_is_changed():
    failure = only(partial_sums())
    assert (failure.oracle, failure.kind, failure.ranks) == ("preservation", "buffer changed", (2,))


def test_a_buffer_of_another_rank_is_counted_where_nothing_is_said_of_it():
    judgement = partial_sums().judge(contract(reduce_others="unspecified"))
    assert (judgement.failures, judgement.unspecified) == ([], 2)


@pytest.mark.parametrize("change", ["resize", "set", "transpose"])
def test_the_given_tensor_itself_is_changed(change):
    simulation = Simulation(case_of("all_gather", (6, 2))).run()
    view = simulation.buffers[0]["x"].view
    if change == "resize":
        view.resize_(3, 4)
    elif change == "set":
        view.set_(view.clone())
    else:
        view.t_()
    failure = only(simulation)
    assert (failure.oracle, failure.kind) == ("preservation", "tensor metadata changed")


# What ranks hold compared with each other.


def two_orders():
    """A sum that is legal on every rank, and rounded in another order on one."""
    simulation = Simulation(case_of("all_reduce", (400,), world=3, reduce_op="sum")).run()
    x, y, z = (mine["x"] for mine in simulation.inputs)
    simulation.write(2, "x", z + y + x)
    return simulation


def test_ranks_add_up_in_different_orders():
    failure = only(two_orders())
    assert (failure.oracle, failure.kind) == ("agreement", "ranks disagree")


def test_ranks_may_disagree_where_nothing_is_promised():
    assert two_orders().symptoms(replace(contract(), agreement={})) == []


def test_nan_is_nan_whatever_its_payload():
    simulation = Simulation(case_of("all_reduce", (400,), payload="special", reduce_op="sum")).run()
    result = flat(simulation.buffers[0]["x"])
    result.view(torch.int32)[result.isnan()] = -1
    simulation.buffers[0]["x"].view.copy_(result)
    assert simulation.symptoms() == []


def test_a_copy_keeps_the_payload_of_nan():
    simulation = Simulation(case_of("broadcast", (400,), payload="special")).run()
    result = flat(simulation.buffers[1]["x"])
    result.view(torch.int32)[result.isnan()] ^= 1
    simulation.buffers[1]["x"].view.copy_(result)
    assert simulation.symptoms() == [WRONG]


def test_a_wrong_result_that_a_bound_judged_says_how_much_it_would_show():
    simulation = reduced_by(8, lambda inputs, rank: inputs[rank])
    assert "judged by a bound of detection power 1.00" in only(simulation).message
