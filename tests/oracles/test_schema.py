"""What a registered operator says of itself, held against what happens: toys, torch's own collectives, and a judge."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives  # registers the operators

from corpus.case import Call, Case, Tensor, TensorSpec, World
from corpus.contract import Contract, OpContract, Promise
from fuzz.runner import Runner
from oracles.failure import Verdict
from oracles.observation import Observation, Status
from oracles.schema import Watch, judge, observe


@pytest.fixture
def library() -> Iterator[torch.library.Library]:
    """Operators of one test."""
    made = torch.library.Library("cclfuzz_toys", "FRAGMENT")
    yield made
    made._destroy()


def register(library, schema, real, fake=None):
    name = schema.partition("(")[0]
    library.define(schema)
    library.impl(name, real, "CPU")
    if fake is not None:
        library._register_fake(name, fake)
    return getattr(torch.ops.cclfuzz_toys, name).default


def copy(x, out):
    out.copy_(x)


def zero(x):
    x.zero_()


def odd(operator: Any, *arguments: Any, wait: Any = None) -> dict[str, str]:
    """By kind, what is said of one call."""
    watch = Watch(0, operator, arguments)
    given = operator(*arguments)
    results = [given] if isinstance(given, torch.Tensor) else list(given or [])
    watch.returned([wait(one) if wait else one for one in results])
    return {one["kind"]: one["text"] for one in watch.report()["odd"]}


def test_an_honest_operator(library):
    op = register(library, "honest(Tensor x) -> Tensor", lambda x: x + 1, torch.empty_like)
    assert odd(op, torch.ones(2, 3)) == {}


def test_an_out_argument_that_the_schema_does_not_mention(library):
    """flashinfer#3759: an operator registered with mutates_args=[] that writes to its `out`."""
    op = register(library, "hides_write(Tensor x, Tensor out) -> ()", copy)
    assert odd(op, torch.ones(3), torch.zeros(3)) == {"schema hides a write": "argument out was written to"}


def test_an_out_argument_that_the_schema_mentions(library):
    op = register(library, "says_write(Tensor x, Tensor(a!) out) -> ()", copy)
    assert odd(op, torch.ones(3), torch.zeros(3)) == {}


def test_a_write_to_an_element_of_a_list(library):
    def real(xs):
        xs[1].zero_()

    op = register(library, "hides_in_list(Tensor[] xs) -> ()", real)
    assert odd(op, [torch.ones(3), torch.ones(3)]) == {"schema hides a write": "argument xs[1] was written to"}


@pytest.mark.parametrize("view", [torch.ones(4, 2).t(), torch.ones(4)[::2]])
def test_a_write_through_a_view(library, view):
    op = register(library, "hides_in_view(Tensor x) -> ()", zero)
    assert "schema hides a write" in odd(op, view)


@pytest.mark.parametrize(
    "view",
    [
        torch.ones(()),
        torch.empty(0).as_strided((0,), (129,)),
        torch.ones(9).as_strided((1,), (129,), 4),
        torch.ones(9).as_strided((1, 3), (129, 2), 1),
        torch.ones(1).expand(5),
        torch.ones(3, dtype=torch.complex64).conj(),
        torch._neg_view(torch.ones(3)),
        torch.ones(3, dtype=torch.bool),
        torch.ones(3, dtype=torch.bfloat16),
        torch.ones(3).to(torch.float8_e4m3fn),
    ],
    ids=["0-dim", "empty", "one", "row", "expanded", "conj", "neg", "bool", "bfloat16", "float8"],
)
def test_a_view_of_any_kind_can_be_watched(library, view):
    op = register(library, "reads(Tensor x) -> Tensor", lambda x: x.clone(), torch.clone)
    assert odd(op, view) == {}


def test_an_alias_that_the_schema_does_not_mention(library):
    op = register(library, "hides_alias(Tensor x) -> Tensor", lambda x: x, torch.empty_like)
    assert odd(op, torch.ones(3)) == {"schema hides an alias": "result 0 shares its storage with argument x"}


def test_an_alias_that_the_schema_mentions(library):
    op = register(library, "says_alias(Tensor(a) x) -> Tensor(a)", lambda x: x.view(-1), lambda x: x.view(-1))
    assert odd(op, torch.ones(2, 2)) == {}


@pytest.mark.parametrize(
    ("fake", "kind"),
    [
        (lambda x: x.new_empty(3, 4), "fake shape differs"),
        (lambda x: torch.empty_like(x, dtype=torch.float64), "fake dtype differs"),
        (lambda x: torch.empty_strided((2, 3), (1, 2)), "fake strides differ"),
    ],
)
def test_a_fake_that_is_wrong(library, fake, kind):
    op = register(library, f"{kind.replace(' ', '_')}(Tensor x) -> Tensor", lambda x: x + 1, fake)
    assert list(odd(op, torch.ones(2, 3))) == [kind]


def test_a_fake_that_raises(library):
    def fake(x):
        raise ValueError("not for this one")

    op = register(library, "raises(Tensor x) -> Tensor", lambda x: x + 1, fake)
    assert odd(op, torch.ones(2)) == {"fake raises": "the fake raises ValueError: not for this one"}


def test_an_operator_without_a_fake(library):
    op = register(library, "no_fake(Tensor x) -> Tensor", lambda x: x + 1)
    assert odd(op, torch.ones(2)) == {}


def test_strides_of_dimensions_that_go_nowhere_do_not_matter(library):
    op = register(library, "one(Tensor x) -> Tensor", lambda x: x + 1, lambda x: torch.empty_strided((1, 3), (99, 1)))
    assert odd(op, torch.ones(1, 3)) == {}


def test_only_odd_calls_are_reported(library):
    op = register(library, "quiet(Tensor x) -> Tensor", lambda x: x + 1, torch.empty_like)
    watch = Watch(0, op, (torch.ones(2),))
    watch.returned([op(torch.ones(2))])
    assert observe([watch]) == {"calls": []}


@pytest.fixture(scope="module")
def group() -> Iterator[str]:
    """The name of a process group of this process alone."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield dist.group.WORLD.group_name
    dist.destroy_process_group()


@pytest.mark.parametrize("name", ["all_reduce", "all_gather_into_tensor", "reduce_scatter_tensor", "broadcast"])
def test_torch_s_functional_collectives_on_dense_tensors(group, name):
    functional = torch.ops._c10d_functional
    arguments = {
        "all_reduce": ("sum", group),
        "all_gather_into_tensor": (1, group),
        "reduce_scatter_tensor": ("sum", 1, group),
        "broadcast": (0, group),
    }
    assert odd(getattr(functional, name).default, torch.ones(2, 3), *arguments[name], wait=functional.wait_tensor) == {}


@pytest.mark.parametrize("name", ["all_reduce_", "broadcast_"])
def test_torch_s_functional_collectives_in_place(group, name):
    functional = torch.ops._c10d_functional
    argument = "sum" if name == "all_reduce_" else 0
    operator = getattr(functional, name).default
    assert odd(operator, torch.ones(3), argument, group, wait=functional.wait_tensor) == {}


@pytest.mark.skipif(not torch.__version__.startswith("2.13."), reason="of a released version: torch 2.13")
def test_a_fake_of_torch_2_13_has_other_strides(group):
    """Its fake of a functional broadcast keeps a transposed input's strides, the operator gives dense ones."""
    functional = torch.ops._c10d_functional
    found = odd(functional.broadcast.default, torch.ones(3, 2).t(), 0, group, wait=functional.wait_tensor)
    assert found == {"fake strides differ": "result 0: the fake's strides (1, 2), the real (3, 1)"}


CALL = Call("all_reduce", ("x",), ("y",), reduce_op="sum")
TENSORS = (Tensor("x", TensorSpec((5,))), Tensor("y", TensorSpec((5,), payload=None)))


def seen(rank, *kinds):
    odds = [{"kind": kind, "text": "argument x was written to"} for kind in kinds]
    reports = {"schema": {"calls": [{"call": 0, "schema": "op(Tensor x) -> Tensor", "odd": odds}]}}
    return Observation(rank, Status.OK, reports=reports)


def judged(in_place_from=0):
    contract = Contract(
        "a",
        {"all_reduce": OpContract("", returned=True)},
        Promise("right", ""),
        in_place_from=Promise(in_place_from, ""),
    )
    case = Case("a", World(2), TENSORS, (CALL,))
    return list(judge(case, contract, [seen(0, "schema hides a write"), seen(1, "schema hides a write")]))


def test_ranks_are_merged_and_the_schema_is_the_promise():
    (failure,) = judged()
    assert (failure.kind, failure.ranks, failure.verdict) == ("schema hides a write", (0, 1), Verdict.WRONG)
    assert "op(Tensor x) -> Tensor" in failure.promise
    assert failure.bug


def test_what_a_person_asked_for_by_a_flag_is_no_failure():
    assert len(judged(in_place_from=6)) == 1
    assert judged(in_place_from=5) == []


def test_the_operator_of_report_a_hides_its_write(runner: Runner):
    spec = TensorSpec((4_194_304,))
    tensors = (Tensor("x", spec), Tensor("y", TensorSpec(spec.shape, payload=None)))
    case = Case("vllm-model", World(2), tensors, (CALL,), fault="inplace-above-threshold")
    kinds = [failure.kind for failure in runner.run(case).judgement.failures]
    assert kinds == ["input changed", "output aliases input", "schema hides a write", "schema hides an alias"]
