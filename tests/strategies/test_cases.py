"""Every case that is drawn is legal, fits, and can be written down and read back."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from corpus import codec
from corpus.meaning import check, holders
from strategies.cases import cases
from tests.strategies.helpers import draws, fresh_space, gloo_space, specs

SPACES = {
    "gloo": gloo_space,
    "fresh": fresh_space,
    "contiguous": replace(gloo_space, layouts="contiguous"),
    "one rank": replace(gloo_space, worlds=(1,)),
    "large worlds": replace(gloo_space, worlds=(5, 8, 16), memory=64 << 20),
    "the largest world": replace(gloo_space, worlds=(64,), max_calls=1, memory=64 << 20),
    "little memory": replace(gloo_space, memory=4096),
    "no memory": replace(gloo_space, memory=16 * 2 * 4 * 5),
    "long programs": replace(gloo_space, max_calls=8, memory=1 << 20),
    "pinned": replace(gloo_space, memory_kind="cpu_pinned"),
}


@pytest.mark.parametrize("space", SPACES.values(), ids=SPACES)
def test_every_case_is_legal(space):
    for case in draws(cases(space), examples=10 if max(space.worlds) == 64 else 100):
        check(case)
        assert case.memory() <= space.memory
        assert codec.loads(codec.dumps(case), space.memory) == case
        assert case.world.size in space.worlds
        drawn = [call for call in case.program if not call.local]
        # A relation adds two calls at most.
        assert len(drawn) <= space.max_calls + 2 * len(case.relations)
        for spec in specs(case):
            assert spec.memory == space.memory_kind
            assert space.layouts == "any" or (spec.layout.strides is None and not spec.layout.conj | spec.layout.neg)
        for call in drawn:
            menu = space.menu(case.world.size)[call.op]
            dtypes = {case.tensor(name).spec.dtype for name in call.inputs}
            assert dtypes <= set(menu[call.reduce_op])


def _collectives(case):
    return [call for call in case.program if not call.local]


def test_what_the_contract_says_of_outputs():
    for case in draws(cases(fresh_space), examples=100):
        for call in _collectives(case):
            assert all(case.tensor(name).spec.payload is None for name in call.outputs)
            assert not call.async_op
            assert call.op != "all_gather" or len(case.ranks(call)) >= 2
    for case in draws(cases(gloo_space), examples=200):
        written: set[str] = set()
        for call in case.program:
            if call.local:
                pass
            elif call.op in ("all_reduce", "broadcast", "reduce"):
                assert call.inputs == call.outputs
            else:
                assert all(case.tensor(name).spec.payload == "poison" for name in call.outputs)
            assert not any(case.tensor(name).spec.payload == "poison" for name in {*call.inputs} - written)
            written |= {*call.outputs}


def test_names_read_well():
    names = {tensor.name for case in draws(cases(gloo_space), examples=800) for tensor in case.tensors}
    assert {"x", "y", "x0", "y1", "x_2", "y_2", "z_2"} <= names
    names = {tensor.name for case in draws(cases(fresh_space)) for tensor in case.tensors}
    assert {"x", "out", "out0", "out_2"} <= names


def test_no_tensor_is_left_over():
    for case in draws(cases(gloo_space)):
        assert all(holders(case, tensor.name) for tensor in case.tensors)
        assert {group.name for group in case.world.groups} == {call.group for call in case.program} - {"world"}


def test_most_cases_differ():
    drawn = draws(cases(gloo_space), examples=600)
    assert len(set(drawn)) > 0.8 * len(drawn)


_DIGESTS = """
import sys; sys.path[:0] = {path!r}
from tests.strategies.helpers import draws, gloo_space
from strategies.cases import cases
from corpus.codec import digest
print(" ".join(digest(case) for case in draws(cases(gloo_space), key=3, examples=150)))
"""


def test_the_same_seed_draws_the_same_cases_in_another_process():
    here = Path(__file__).parent
    program = _DIGESTS.format(path=[str(here), str(here.parents[1])])
    digests = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for hash_seed in ("1", "2")
    }
    assert len(digests) == 1
    assert len(digests.pop().split()) == 150
