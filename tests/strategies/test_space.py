"""What may be drawn is what the contract has, narrowed by filters that speak up when they leave nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest

from corpus.case import OPS
from corpus.flags import Flag, Scope
from corpus.thresholds import FAMOUS
from strategies.cases import cases
from strategies.space import Space
from tests.strategies.helpers import GLOO, draws, fresh_space, gloo_space


def test_everything_in_corpus_order():
    menu = gloo_space.menu(2)
    assert tuple(menu) == OPS
    assert menu["broadcast"][None][0] == "float32"
    assert next(iter(menu["all_reduce"])) == "sum"


def test_nobody_sends_to_themselves():
    assert "send_recv" not in gloo_space.menu(1)
    assert tuple(fresh_space.menu(1)) == ("all_reduce",)


def test_filters_narrow():
    space = replace(gloo_space, ops=("all_reduce", "gather"), dtypes=("int8", "bool"), reduce_ops=("bxor",))
    assert space.menu(2) == {"all_reduce": {"bxor": ("int8",)}, "gather": {None: ("int8", "bool")}}
    assert "barrier" not in replace(gloo_space, dtypes=("int8",)).menu(2)


@pytest.mark.parametrize(
    ("filters", "message"),
    [
        ({"ops": ("broadcast",)}, "ops: fresh has all_reduce, all_gather; not broadcast"),
        ({"dtypes": ("int8",)}, "dtypes: fresh has float32, bfloat16, float16; not int8"),
        ({"reduce_ops": ("max",)}, "reduce_ops: fresh has sum; not max"),
        ({"worlds": (1,), "ops": ("all_gather",)}, "nothing is left to draw: fresh has all_reduce of float32"),
        ({"worlds": ()}, "worlds"),
        ({"max_calls": 0}, "max_calls"),
        ({"memory": 100}, "memory: at least 640 bytes"),
        ({"thresholds": (FAMOUS,) * 37}, "thresholds: at most 36, not 37"),
        ({"memory_kind": "tape"}, "memory_kind"),
        ({"layouts": "odd"}, "layouts"),
    ],
)
def test_refusals(filters, message):
    with pytest.raises(ValueError, match=message):
        replace(fresh_space, **filters)


def test_flags_of_a_process_are_not_drawn():
    flag = Flag("F", ("1",), Scope.PROCESS, "a test")
    with pytest.raises(ValueError, match="F: has process scope"):
        Space(backend="gloo", contract=GLOO, flags=(flag,))


def test_flags():
    space = replace(
        gloo_space,
        flags=(Flag("B", ("0", "1"), Scope.CALL, "a test"), Flag("C", ("1",), Scope.CALL, "a test")),
        set_flags=(("C", "7"), ("A", "x")),
        fault="broken",
    )
    drawn = {case.flags for case in draws(cases(space), examples=100)}
    fixed = (("A", "x"),), (("C", "7"),)
    assert drawn == {fixed[0] + b + fixed[1] for b in ((), (("B", "0"),), (("B", "1"),))}
    assert {case.fault for case in draws(cases(space), examples=5)} == {"broken"}
