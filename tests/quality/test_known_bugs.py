"""Public bugs of collectives, as faults over a correct backend: the intended oracle reports each, in the words that a
person needs, and no other oracle says anything; the same program without the fault is clean.

Bugs of the list that are not here, and why:

=============================================== =================================================================
pytorch#192920, #24836, #21480, #76527          gloo itself has them: corpus/regressions, tests/quality/test_gloo.py
pytorch#14632, #150248, nccl#1417,              an illegal program: tests/quality/test_illegal.py
torchrec#4149
pytorch#108811, #130918                         needs a compiler
aiter#3928 (replay of a graph)                  needs CUDA graphs; its counter that stands still is here
flashinfer#3759                                 an operator's schema: the schema oracle has its own tests
vllm-all-reduce.md, report B, vllm#53136,       routing: the results are right, and another path runs
nccl#1304, TensorRT-LLM#15547, sglang#19329
=============================================== =================================================================
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

import pytest

from corpus.case import WORLD, Call, Case, Group, Layout, Tensor, TensorSpec, World
from fuzz.backends import load
from fuzz.faults import KNOWN_BUGS
from fuzz.runner import Runner

WRONG = frozenset({("numeric", "wrong result")})
INPUT_CHANGED = frozenset({("preservation", "input changed")})
ALIASED = frozenset({("preservation", "output aliases input")})
DISAGREE = frozenset({("agreement", "ranks disagree")})
REFUSED = frozenset({("errors", "refused")})
CRASH = frozenset({("liveness", "crash")})
HANG = frozenset({("liveness", "hang")})

TWICE_RIGHT = INPUT_CHANGED | ALIASED
"""One oracle, two promises broken: a new tensor was promised, and an input that stays."""


@dataclass(frozen=True, slots=True)
class Bug:
    """`rows` of the list, the fault that stands for them, the least program that shows it, and what is to be said.

    `says` is a regular expression that a failure's message must match (letter case aside), `calls` are those that are
    blamed.
    """

    rows: tuple[str, ...]
    fault: str
    case: Case
    says: str
    shows: frozenset[tuple[str, str]] = WRONG
    calls: tuple[int, ...] = (0,)


def in_place(op: str, *specs: TensorSpec, world: int = 2, groups: tuple[Group, ...] = (), **arguments: object) -> Case:
    """One call after another of an op that works in place, one a tensor x, x_2, x_3, ..."""
    names = ["x", *(f"x_{place}" for place in range(2, len(specs) + 1))]
    group = groups[0].name if groups else WORLD
    calls = tuple(Call(op, (name,), (name,), group=group, **arguments) for name in names)  # type: ignore[arg-type]
    return Case("gloo", World(world, groups), tuple(map(Tensor, names, specs)), calls)


def all_reduce(*specs: TensorSpec, reduce_op: str = "sum", **rest: object) -> Case:
    return in_place("all_reduce", *specs, reduce_op=reduce_op, **rest)  # type: ignore[arg-type]


def model(*shapes: tuple[int, ...], world: int = 2) -> Case:
    """All-reduces of vLLM's model, which return new tensors."""
    tensors: list[Tensor] = []
    calls = []
    for place, shape in enumerate(shapes, 1):
        end = f"_{place}" if place > 1 else ""
        tensors += [Tensor(f"x{end}", TensorSpec(shape)), Tensor(f"out{end}", TensorSpec(shape, payload=None))]
        calls.append(Call("all_reduce", (f"x{end}",), (f"out{end}",), reduce_op="sum"))
    return Case("vllm-model", World(world), tuple(tensors), tuple(calls))


def output(*shape: int, dtype: str = "float32") -> TensorSpec:
    return TensorSpec(shape, dtype, payload="poison")


def x(*shape: int, **rest: object) -> TensorSpec:
    return TensorSpec(shape, **rest)  # type: ignore[arg-type]


def reduce_scatter(given: TensorSpec, out: TensorSpec, reduce_op: str = "sum", world: int = 2) -> Case:
    call = Call("reduce_scatter_tensor", ("x",), ("y",), reduce_op=reduce_op)
    return Case("gloo", World(world), (Tensor("x", given), Tensor("y", out)), (call,))


def all_gather(given: TensorSpec, out: TensorSpec, world: int = 2, group: Group | None = None) -> Case:
    call = Call("all_gather_into_tensor", ("x",), ("y",), group=group.name if group else WORLD)
    groups = (group,) if group else ()
    return Case("gloo", World(world, groups), (Tensor("x", given), Tensor("y", out)), (call,))


def listed(op: str, given: TensorSpec, out: TensorSpec, world: int = 2, **arguments: object) -> Case:
    """One input and a list of outputs, or (reduce_scatter) the other way round."""
    scattered = op == "reduce_scatter"
    inputs = tuple(f"x{place}" for place in range(world)) if scattered else ("x",)
    outputs = ("y",) if scattered else tuple(f"y{place}" for place in range(world))
    tensors = tuple(Tensor(name, given) for name in inputs) + tuple(Tensor(name, out) for name in outputs)
    return Case("gloo", World(world), tensors, (Call(op, inputs, outputs, **arguments),))  # type: ignore[arg-type]


def asynchronous(case: Case) -> Case:
    """Every call begun before any is waited for; the newest is waited for first."""
    last = len(case.program) - 1
    return replace(case, program=tuple(replace(call, async_op=True, wait=last) for call in case.program))


def negated_first(case: Case) -> Case:
    return replace(case, program=(Call("negate", ("x",), ("x",)), *case.program))


def then_all_reduce(case: Case, spec: TensorSpec) -> Case:
    call = Call("all_reduce", ("x_2",), ("x_2",), reduce_op="sum")
    return replace(case, tensors=(*case.tensors, Tensor("x_2", spec)), program=(*case.program, call))


def both_groups(spec: TensorSpec) -> Case:
    groups = (Group("g0", (0, 2)), Group("g1", (1, 3)))
    calls = tuple(Call("all_reduce", ("x",), ("x",), group=group.name, reduce_op="sum") for group in groups)
    return Case("gloo", World(4, groups), (Tensor("x", spec),), calls)


WIDE = x(5, payload="wide")
"""The counting data of two ranks and two calls can be exchanged without a change in the sum; these cannot."""

CHANNELS_LAST = Layout((12, 1, 6, 2))
"""Of shape (2, 2, 2, 3)."""

BUGS = (
    # Layout and stride.
    Bug(
        ("pytorch#158903", "pytorch#159548"),
        "gather-of-a-column",
        listed("gather", x(3, layout=Layout((2,))), output(3), root=0),
        "rank 0 wrong.*base storage's elements instead of the view's",
    ),
    Bug(
        ("pytorch#130251", "pytorch#128066"),
        "reduce-scatter-of-gaps",
        reduce_scatter(x(4, layout=Layout((2,))), output(2)),
        "base storage's elements instead of the view's",
    ),
    Bug(
        ("pytorch#163483",),
        "gather-in-memory-order",
        listed("all_gather", x(2, 2, 2, 3, layout=CHANNELS_LAST), output(2, 2, 2, 3)),
        "base storage's elements instead of the view's",
    ),
    Bug(
        ("Megatron-LM#5337",),
        "contiguous-copy-dropped",
        all_reduce(x(2, 3, layout=Layout((1, 2)))),
        "no reduction: it holds this rank's own input",
    ),
    Bug(
        ("vllm#23648",),
        "unmoved-dimension",
        reduce_scatter(x(4, 3, layout=Layout((1, 4))), output(2, 3)),
        "base storage's elements instead of the view's",
    ),
    Bug(
        ("ompi#11510",),
        "gaps-are-zeros",
        all_gather(x(3, layout=Layout((2,))), output(6)),
        "6 of 6 elements.*it holds zeros",
    ),
    # Aliasing, mutation, in place.
    # Its operator is registered as functional, so that its schema is wrong too: both are told.
    Bug(
        ("report A",),
        "inplace-above-threshold",
        model((4_194_304,)),
        "input changed.*4,194,304 of 4,194,304 elements changed, and hold the call's result",
        TWICE_RIGHT | {("schema", "schema hides a write"), ("schema", "schema hides an alias")},
    ),
    Bug(
        ("vllm#39844", "vllm#39507"),
        "mutates-input",
        model((5,)),
        "input changed.*5 of 5 elements changed, and hold the call's result",
        INPUT_CHANGED,
    ),
    Bug(("vllm#7755",), "aliased-when-alone", model((5,), world=1), "shares its storage with input x", ALIASED),
    Bug(
        ("vllm#9061",),
        "aliased-at-some-sizes",
        model((4,)),
        "shares its storage with input x",
        TWICE_RIGHT,
    ),
    Bug(
        ("sglang#27123",),
        "staging-not-written-back",
        all_reduce(x(1025)),
        "no reduction: it holds this rank's own input",
    ),
    Bug(
        ("sglang#24548",),
        "staging-too-small",
        all_reduce(x(1025)),
        r"all_reduce is refused on ranks 0 and 1.*exceeds that of the staging buffer",
        REFUSED,
    ),
    Bug(
        ("ompi#2824",),
        "own-contribution-overwritten",
        in_place("reduce", x(16_384), reduce_op="sum", root=0),
        "rank 1's contribution stands in for rank 0's",
    ),
    Bug(("ompi#2824",), "input-clobbered", listed("all_gather", x(3), output(3)), "1 of 3 elements", INPUT_CHANGED),
    Bug(
        ("mpich#6893",),
        "receive-buffer-added",
        reduce_scatter(x(1026, dtype="int32"), output(513, dtype="int32")),
        "513 of 513 elements",
    ),
    # The two share memory, so the first is lost when the second is written: both are told.
    Bug(
        ("vllm 0.32",),
        "shared-scratch",
        model((5,), (5,)),
        "did not survive call 1",
        WRONG | {("preservation", "output aliases another tensor")},
        calls=(0, 1),
    ),
    # Reduce-op semantics.
    Bug(
        ("pytorch#162338", "pytorch#149869"),
        "avg-is-sum",
        listed("reduce_scatter", x(3), output(3), reduce_op="avg"),
        "another reduce op: it holds sum, not avg",
    ),
    Bug(
        ("rocm-systems#10322",),
        "avg-is-sum",
        reduce_scatter(x(6), output(3), "avg"),
        "another reduce op: it holds sum, not avg",
    ),
    Bug(
        ("torchcomms#287",),
        "avg-by-elements",
        all_reduce(x(5), reduce_op="avg"),
        "divided by 5, the number of elements",
    ),
    Bug(
        ("InfiniCCL#37",),
        "integer-avg-is-zero",
        all_reduce(x(5, dtype="int32"), reduce_op="avg"),
        "5 of 5 elements.*it holds zeros",
    ),
    Bug(
        ("pytorch#190745",),
        "premul-factor-is-zero",
        all_reduce(x(5, dtype="bfloat16"), reduce_op="premul_sum", factor=0.5),
        "the factor 0.5 is read as 0",
    ),
    Bug(
        ("pytorch#39708",),
        "bxor-is-sum",
        in_place("reduce", x(5, dtype="int32"), reduce_op="bxor", root=0),
        "another reduce op: .*holds? sum, not bxor",
    ),
    Bug(
        ("MS-AMP#38",),
        "avg-product-swapped",
        all_reduce(x(5), reduce_op="avg"),
        "another reduce op: it holds product, not avg",
    ),
    Bug(
        ("rccl#745",),
        "min-max-swapped",
        all_reduce(x(5), reduce_op="min"),
        "another reduce op: it holds max, not min",
    ),
    Bug(
        ("jax#21820",),
        "max-identity",
        negated_first(all_reduce(x(5), reduce_op="max")),
        "5 of 5 elements.*one value only, 1.1754944e-38",
        calls=(1,),
    ),
    Bug(("vllm#33088",), "sum-is-mean", reduce_scatter(x(6), output(3)), "another reduce op: it holds avg, not sum"),
    Bug(
        ("torchcomms#477",),
        "root-contributes-zeros",
        listed("reduce_scatter", x(3), output(3), world=3, reduce_op="sum"),
        "rank 0's contribution is missing",
    ),
    Bug(("torchcomms#477",), "missing-contribution", all_reduce(x(5), world=3), "rank 2's contribution is missing"),
    # Dtype, precision, order.
    Bug(
        ("vllm#55345",),
        "bf16-through-fp16",
        all_reduce(x(256, dtype="bfloat16", payload="special")),
        "the sum went through float16",
    ),
    Bug(
        ("sglang#34473",),
        "bf16-saturates",
        all_reduce(x(64, dtype="bfloat16", payload="special")),
        "the sum went through float16, and saturated",
    ),
    Bug(
        ("pytorch#152300",),
        "rare-corruption",
        all_reduce(x(100_000, dtype="float16")),
        "7 of 100,000 elements.*in ulp: 1: 7",
    ),
    Bug(
        ("pytorch#129501", "pytorch#131244"),
        "own-rank-first",
        all_reduce(x(64, payload="wide"), world=3),
        "every rank holds a legal result of x, but not the same bits",
        DISAGREE,
    ),
    Bug(
        ("mpich#6538", "ompi#12258"),
        "association-by-rank",
        all_reduce(x(64, payload="wide"), world=3),
        "not the same bits: ranks 0 and 2 hold one, rank 1 holds one",
        DISAGREE,
    ),
    # Size, tail, alignment, world size.
    Bug(
        ("nccl#1950", "pytorch#168092"),
        "alone-avg-tail",
        reduce_scatter(x(13), output(13), "avg", world=1),
        "the last 5 elements were not written: they hold what the output held before the call",
    ),
    Bug(("nccl#1950", "rccl#1556"), "tail-not-written", all_reduce(x(13)), "the last 5 elements were not reduced"),
    Bug(
        ("rccl#1556",),
        "tail-of-128",
        reduce_scatter(x(260), output(130)),
        "the last 2 elements were not written: they hold what the output held before the call",
    ),
    Bug(
        ("FasterTransformer#480",),
        "elements-for-bytes",
        all_reduce(x(1100, dtype="bfloat16")),
        "the first at 1024.*shifted: it holds elements that belong 1 place earlier",
    ),
    Bug(
        ("FasterTransformer#672",),
        "right-on-first-rank-only",
        all_reduce(x(8)),
        "rank 1 wrong.*4 places",
    ),
    Bug(
        ("ompi#9606",),
        "extent-overflow",
        all_gather(x(40_000, layout=Layout((2,))), output(80_000)),
        "the first at 32768",
    ),
    Bug(
        ("gloo#184",),
        "powers-of-two-only",
        all_reduce(x(5), world=3),
        "rank 2's contribution is counted twice",
    ),
    Bug(("pytorch#85234",), "crash-on-empty", in_place("broadcast", x(0), root=0), "rank 0 died by SIGFPE", CRASH),
    Bug(("flashinfer#4393",), "hang-on-few", listed("all_gather", x(1), output(1)), "ranks? 0 did not return", HANG),
    Bug(("TensorRT-LLM#16111",), "hang-below-warp", all_reduce(x(2, 31)), r"in call 0 \(all_reduce\)", HANG),
    Bug(
        ("mlx#4236",),
        "error-swallowed",
        in_place("reduce", x(3), reduce_op="product", root=0),
        r"rank 0 did not return in call 0 \(reduce\)",
        HANG,
    ),
    Bug(
        ("mpi4py#186",),
        "unaligned-shift",
        all_gather(x(4, layout=Layout(before=1)), output(12), world=3),
        "shifted: it holds what its sources have 1 place earlier",
    ),
    # Splits, groups, roots.
    Bug(
        ("gloo#303",),
        "twelve-integers",
        reduce_scatter(x(12, dtype="int32"), output(6, dtype="int32")),
        "it holds what belongs on rank 1",
    ),
    Bug(
        ("pytorch#74602", "pytorch#149200"),
        "group-root-as-global",
        in_place("broadcast", x(3), world=3, groups=(Group("g0", (1, 2)),), root=1),
        "rank 1's data where rank 2's belongs",
    ),
    Bug(
        ("flashinfer#3418",),
        "global-root-as-group",
        in_place("broadcast", x(3), world=3, groups=(Group("g0", (1, 2)),), root=0),
        "rank 2's data where rank 1's belongs",
    ),
    Bug(
        ("pytorch#176126",),
        "sorted-group",
        all_gather(x(2), output(6), world=3, group=Group("g0", (2, 1, 0))),
        "rank 0's data where rank 2's belongs, rank 2's data where rank 0's belongs",
    ),
    Bug(
        ("nccl#1906",),
        "permuted-gather",
        all_gather(x(2), output(6), world=3, group=Group("g0", (1, 0, 2))),
        "rank 2's data where rank 1's belongs, rank 1's data where rank 2's belongs",
    ),
    Bug(
        ("nccl#1906",),
        "gather-misordered",
        all_gather(x(2), output(6), world=3),
        "rank 2's data where rank 1's belongs, rank 1's data where rank 2's belongs",
    ),
    Bug(("jax#5861",), "groups-as-blocks", both_groups(x(3)), "3 of 3 elements", calls=(0, 1)),
    # Order, reuse, liveness.
    Bug(
        ("vllm#2760",),
        "stale-slot",
        all_reduce(WIDE, replace(WIDE, shape=(8,))),
        "rank 1's data are those of call 0 in the first 5",
        calls=(1,),
    ),
    Bug(("vllm#25892",), "regions-overlap", all_reduce(x(5), x(8)), "1 of 8 elements, the first at 5: 2 ", calls=(1,)),
    Bug(("aiter#3928",), "counter-stands-still", all_reduce(x(5), x(5)), "it holds what call 0 left", calls=(1,)),
    Bug(
        ("tokenspeed#1356",),
        "one-staging-slot",
        asynchronous(all_reduce(WIDE, WIDE)),
        "rank 0's data are those of call 1",
    ),
    Bug(
        ("tokenspeed#1356",),
        "works-swapped",
        asynchronous(all_reduce(x(5), x(5))),
        "it holds what call 0 left",
        calls=(0, 1),
    ),
    Bug(
        ("sglang#13397",),
        "shared-state",
        then_all_reduce(all_gather(x(3), output(6)), x(5)),
        "every rank's data are those of call 0 in the first 3 elements",
        calls=(1,),
    ),
    Bug(
        ("vllm#30650",),
        "warm-up",
        model((5,), (5,)),
        "it was not written: it holds what freed memory was filled with",
    ),
)


def test_every_fault_is_tried() -> None:
    own = [fault for backend in ("gloo", "vllm-model") for fault in load(backend).faults]
    assert {bug.fault for bug in BUGS} | {"flaky-at-1-mib"} == {*KNOWN_BUGS, *own}


@pytest.mark.parametrize("bug", BUGS, ids=[f"{bug.rows[0]}-{bug.fault}" for bug in BUGS])
def test_a_known_bug_is_reported_by_its_oracle_alone(runner: Runner, monkeypatch: pytest.MonkeyPatch, bug: Bug) -> None:
    if bug.shows == HANG:
        monkeypatch.setattr(runner, "deadline", 3.0)
    judgement = runner.run(replace(bug.case, fault=bug.fault)).judgement
    assert judgement.lost == ""
    assert {(failure.oracle, failure.kind) for failure in judgement.failures} == bug.shows
    assert {failure.call for failure in judgement.failures} == set(bug.calls)
    messages = [failure.message for failure in judgement.failures]
    assert any(re.search(bug.says, message, re.IGNORECASE) for message in messages), messages


@pytest.mark.parametrize("case", dict.fromkeys(bug.case for bug in BUGS), ids=lambda case: case.program[-1].op)
def test_the_program_of_a_known_bug_is_clean_without_it(runner: Runner, case: Case) -> None:
    judgement = runner.run(case).judgement
    assert (judgement.failures, judgement.lost) == ([], "")


@pytest.mark.parametrize("bug", BUGS, ids=[f"{bug.rows[0]}-{bug.fault}" for bug in BUGS])
def test_a_fault_says_which_bug_it_stands_for(bug: Bug) -> None:
    if bug.fault in KNOWN_BUGS:
        assert all(row in str(KNOWN_BUGS[bug.fault].__doc__) for row in bug.rows)
    else:
        assert bug.rows[0] in load(bug.case.backend).faults[bug.fault]


def test_what_fails_in_three_of_ten_runs_is_found_in_three_of_ten(runner: Runner) -> None:
    """nccl#2001."""
    case = replace(all_reduce(x(1 << 18)), fault="flaky-at-1-mib")
    found = [runner.run(case).judgement.failures for _ in range(10)]
    assert sorted(len(failures) for failures in found) == [0] * 7 + [1] * 3
    failures = [failure for each in found for failure in each]
    assert {(failure.oracle, failure.kind) for failure in failures} == WRONG
    assert all("16 of 262,144 elements, the first at 131072: 0 " in failure.message for failure in failures)
