"""Whose error it is: what the library raises is an observation, what we raise is our own defect."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from corpus.case import Call, Case, Tensor, TensorSpec, World
from corpus.contract import Contract
from fuzz.backends.base import Backend, Place
from fuzz.ranks.execute import Executor, Run
from oracles.buffers import build

CASE = Case("stub", World(1), (Tensor("x", TensorSpec((2,))),), (Call("broadcast", ("x",), ("x",), root=0),))


class Stub(Backend):
    """Does nothing, or raises where it is told to."""

    name = "stub"
    summary = "a stub"

    def __init__(self, raises: str) -> None:
        self.raises = raises

    def contract(self, flags: Mapping[str, str]) -> Contract:
        raise AssertionError("not asked")

    def open(self, place: Place) -> None: ...

    def run(self, case: Case, call: Call, rank: int, tensors: Mapping[str, torch.Tensor]) -> Mapping[str, torch.Tensor]:
        if self.raises == "library":
            raise RuntimeError("the library's")
        return {"no such tensor": tensors["x"]} if self.raises == "adapter" else {}

    def operator(self, *given: Any) -> None:
        if self.raises == "ours":
            raise RuntimeError("ours")

    def close(self) -> None: ...


def run(raises: str) -> Run:
    device = torch.device("cpu")
    executor = SimpleNamespace(rank=0, device=device, backend=Stub(raises), timeout=1.0)
    made = Run(cast(Executor, executor), CASE, build(CASE, 0, device))
    made.calls(lambda index: None)
    return made


def test_what_the_library_raises_is_kept() -> None:
    assert str(run("library").error) == "the library's"
    assert run("nothing").error is None


@pytest.mark.parametrize(("raises", "error"), [("ours", RuntimeError), ("adapter", KeyError)])
def test_what_we_raise_is_not_taken_for_a_refusal(raises: str, error: type[Exception]) -> None:
    with pytest.raises(error):
        run(raises)
