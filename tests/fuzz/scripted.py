"""A runner without ranks: what every case shows is a function of the case and of how many runs there were."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from corpus.case import Call, Case, Tensor, TensorSpec, World
from corpus.codec import digest
from corpus.contract import Contract
from fuzz.backends import load
from fuzz.backends.base import Backend
from fuzz.campaign import Budget, Campaign
from fuzz.runner import Outcome
from fuzz.session import Session, space
from oracles.failure import Failure, NumericFailure
from oracles.judge import Judgement
from oracles.observation import Observation, Status
from tests.quality.helpers import Memory, Ran

Script = Callable[[Case, int], Sequence[Failure]]
"""A case, and how many runs were before it: the failures."""


class ScriptedRunner:
    """Runs nothing."""

    rebuilds = 0

    def __init__(self, script: Script, **judgement: object) -> None:
        self.deadline = 0.0
        self.runs = 0
        self._script = script
        self._judgement = judgement

    def backend(self, name: str) -> Backend:
        return load(name)

    def contract(self, case: Case) -> Contract:
        return self.backend(case.backend).contract(dict(case.flags))

    def run(self, case: Case) -> Outcome:
        failures = list(self._script(case, self.runs))
        self.runs += 1
        seen = tuple(Observation(rank, Status.OK, digest(case)) for rank in range(case.world.size))
        return Outcome(case, seen, Judgement(failures, **self._judgement), 0.0)


def scripted(
    script: Script, *, examples: int = 60, against: str | None = None, backend: str = "gloo", **judgement: object
) -> Ran:
    """A campaign over all_reduce of contiguous float32."""
    runner = ScriptedRunner(script, **judgement)
    session = Session(
        backend,
        (2,),
        Budget(examples=examples),
        ops=("all_reduce",),
        dtypes=("float32",),
        layouts="contiguous",
        memory=1 << 20,
    )
    heard = []
    store = Memory()
    ran = Campaign(
        runner,
        space(session, load(backend)),
        budget=session.budget,
        seed=0,
        database=None,
        listener=heard.append,
        store=store,
        against=against,
    )
    return Ran(store.kept, heard, ran.run())


def wrong(call: int = 0, kind: str = "wrong result", op: str = "all_reduce", **fields) -> Failure:
    return NumericFailure(kind, f"{op}: {kind}", call=call, op=op, **fields)


def all_reduce(size: int = 2, *, backend: str = "gloo", payload: str = "index", **case: object) -> Case:
    """An all_reduce in place."""
    call = Call("all_reduce", ("x",), ("x",), reduce_op="sum")
    made = Case(backend, World(2), (Tensor("x", TensorSpec((size,), payload=payload)),), (call,))
    return replace(made, **case)
