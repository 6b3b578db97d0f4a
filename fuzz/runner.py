"""Runs one case on its world and judges what happened."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType

from corpus.case import DEFAULT_MEMORY, Case, CaseError
from corpus.codec import dumps
from corpus.contract import Contract
from corpus.flags import Scope
from corpus.meaning import check as check_meaning
from corpus.meaning import overwrites
from corpus.naming import parse
from fuzz.backends import load
from fuzz.backends.base import Backend
from fuzz.faults import wrap
from fuzz.ranks.cluster import Cluster, ClusterError
from fuzz.ranks.pool import LIBRARY_TIMEOUT_SECONDS, World, WorldConfig
from oracles import illegal
from oracles.judge import Judgement, judge
from oracles.observation import Observation

DEADLINE = 15.0
"""Seconds that a small case may take before it is called a hang: a thousand times what it takes."""

SLOWEST = 20e6
"""Bytes a second and rank that even a busy machine moves, checks included; larger cases get more time."""

COMPILING = 300.0
"""Seconds more for a program that is compiled as a whole: a first one takes 10 to 24, on an idle machine."""

ILLEGAL_TIMEOUT = 2.0
"""Seconds after which the library itself is to give up in an illegal program: it may raise then."""

ILLEGAL_DEADLINE = 8.0
"""Seconds that an illegal program may take: a few of the library's timeouts."""

MAX_WORLDS = 6
"""Worlds kept alive at once; the one unused for longest makes room."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one run of a case showed. `seconds` is the driver's time for it."""

    case: Case
    observations: tuple[Observation, ...]
    judgement: Judgement
    seconds: float


class NotRun(CaseError):
    """A case that is well-formed, and that this version, backend or machine does not run."""


class Runner:
    """Keeps worlds of ranks between cases. A context manager; not for use by several threads.

    `ray_address` names a Ray cluster to use as it is, `cluster` is one that this process is connected to and that stays
    connected; without either, a private one is started on this machine when the first case runs. `memory` is the budget
    in bytes for one rank's tensors. `pythons`: by backend, the interpreter of the environment that has its library
    (default: the one that its name asks for).
    """

    def __init__(
        self,
        *,
        ray_address: str | None = None,
        cluster: Cluster | None = None,
        memory: int = DEFAULT_MEMORY,
        pythons: Mapping[str, str] | None = None,
    ) -> None:
        self._pythons = dict(pythons or {})
        self._ray_address = ray_address
        self._memory = memory
        self._cluster = cluster
        self._shared = cluster is not None
        self._worlds: OrderedDict[WorldConfig, World] = OrderedDict()
        self._backends: dict[str, Backend] = {}
        self.deadline = DEADLINE

    def backend(self, name: str) -> Backend:
        """Return a backend by name, for what it states. Raises UnknownBackend."""
        if name not in self._backends:
            self._backends[name] = load(name)
            self._backends[name].python = self._pythons.get(name, self._backends[name].python)
        return self._backends[name]

    def contract(self, case: Case) -> Contract:
        """What the case's backend promises under the case's flags."""
        return self.backend(case.backend).contract(dict(case.flags))

    def run(self, case: Case) -> Outcome:
        """Run a case and judge it.

        Raises:
            NotRun: this version or this machine does not run such a case.
            UnknownBackend, UnknownFault: the case names what there is not.
        """
        backend = self.backend(case.backend)
        self._refuse(case, backend)
        world = self._world(case, backend)
        started = time.perf_counter()
        moving = case.memory() * case.world.size / SLOWEST + (0.0 if case.mode == "eager" else COMPILING)
        if case.illegal is None:
            observations = world.run(dumps(case), self.deadline + moving)
        else:
            observations = world.run_once(dumps(case), ILLEGAL_DEADLINE + moving, lambda seen: self._probe(case, seen))
        if world.opened:
            judgement = judge(case, self.contract(case), observations)
        else:
            # An environment that keeps ranks from meeting says nothing of a collective.
            # A rank with an exception of its own says more than one that waited for it.
            saying = sorted((one for one in observations if one.error), key=lambda one: not one.error_type)
            said = f"rank {saying[0].rank}: {saying[0].error}" if saying else ""
            judgement = Judgement(lost=f"the world did not open: {said}")
        return Outcome(case, tuple(observations), judgement, time.perf_counter() - started)

    def _probe(self, case: Case, observations: Sequence[Observation]) -> str | None:
        """What to run after an illegal program, to see what it left behind."""
        following = illegal.probe(case, self.contract(case), observations)
        return None if following is None else dumps(following)

    def check(self, case: Case) -> Outcome:
        """Run a case; raise what the oracles found and call a bug.

        Raises:
            Failure: there was one failure.
            ExceptionGroup: there were several.
            NotRun: as `run` does.
        """
        outcome = self.run(case)
        failures = [failure for failure in outcome.judgement.failures if failure.bug]
        if len(failures) == 1:
            raise failures[0]
        if failures:
            raise ExceptionGroup(f"{case.backend}: {len(failures)} failures", failures)
        return outcome

    def _refuse(self, case: Case, backend: Backend) -> None:
        reason = backend.unavailable()
        if reason is not None and self._ray_address is None:
            raise NotRun(f"{backend.spec} is not available: {reason}")
        if case.memory() > self._memory:
            raise NotRun(f"case: needs {case.memory()} bytes a rank, over the budget of {self._memory}")
        check_meaning(case)
        wrap(backend, case.fault)
        if case.mode not in backend.modes:
            raise NotRun(f"mode {case.mode}: {backend.name} runs {', '.join(backend.modes)} programs")
        if case.mode != "eager" and (case.fault is not None or case.illegal is not None or overwrites(case)):
            raise NotRun(f"mode {case.mode}: only a legal program that uses no tensor before it is overwritten")
        known = {flag.name: flag for flag in backend.flags}
        for name, _ in case.flags:
            if name not in known:
                raise NotRun(f"flag {name}: {backend.name} has {', '.join(known) or 'no flags'}")
        contract = backend.contract(dict(case.flags))
        for call in dict.fromkeys((*case.program, *(call for _, program in case.programs for call in program))):
            if call.local:
                continue
            promise = contract.op(call.op)
            if promise.in_place and call.inputs != call.outputs:
                raise NotRun(f"{call.op}: {backend.name} works in place, so its outputs are its inputs")
            given = [case.tensor(name).on(rank) for name in call.outputs for rank in case.ranks(call)]
            if any((spec.payload is None) != promise.returned for spec in given):
                who = "returns its outputs" if promise.returned else "writes to outputs that the caller allocated"
                raise NotRun(f"{call.op}: {backend.name} {who}")
            if call.region is not None and call.op not in contract.regions.value:
                raise NotRun(f"{call.op}: {backend.name} has {', '.join(contract.regions.value) or 'none'} in regions")
            if call.stream:
                raise NotRun(f"{call.op}: this version runs no streams")
        if case.illegal is not None:
            self._refuse_illegal(case, contract, backend)
        elsewhere = {"cpu"} if case.illegal == "device" else set()
        for tensor, spec in case.specs():
            if spec.memory not in elsewhere | {backend.memory()}:
                raise NotRun(f"tensor {tensor.name}: {backend.name} works on {backend.memory()}, not on {spec.memory}")

    @staticmethod
    def _refuse_illegal(case: Case, contract: Contract, backend: Backend) -> None:
        """Where the contract or the machine decides what is illegal, it is."""
        if case.fault is not None:
            raise NotRun(f"fault {case.fault}: faults are seeded in legal programs")
        if case.illegal == "device" and not any(spec.memory != backend.memory() for _, spec in case.specs()):
            raise NotRun(f"illegal: every tensor is on {backend.memory()}, as {backend.name} wants it")
        if case.illegal == "unsupported dtype" and all(
            contract.op(call.op).accepts(case.tensor(name).on(rank).dtype, call.reduce_op)
            for call in case.program
            for name in call.inputs + call.outputs
            for rank in case.ranks(call)
        ):
            raise NotRun(f"illegal: {backend.name} takes every dtype in the program")

    def _world(self, case: Case, backend: Backend) -> World:
        given = dict(case.flags)
        outside = [flag for flag in backend.flags if flag.scope is not Scope.CALL and flag.environment]
        config = WorldConfig(
            backend=parse(case.backend).what,
            size=case.world.size,
            environment=tuple((flag.name, given.get(flag.name)) for flag in outside),
            python=backend.python,
            gpus_per_rank=backend.gpus_per_rank,
            launcher=backend.launcher,
            timeout=LIBRARY_TIMEOUT_SECONDS if case.illegal is None else ILLEGAL_TIMEOUT,
        )
        if config in self._worlds:
            self._worlds.move_to_end(config)
            return self._worlds[config]
        cluster = self.connect()
        if len(self._worlds) >= MAX_WORLDS:
            self._worlds.popitem(last=False)[1].close()
        self._worlds[config] = World(config, cluster)
        return self._worlds[config]

    def connect(self) -> Cluster:
        """Connect to the Ray cluster, or start a private one; the first case does it otherwise.

        Raises:
            NotRun: there is no cluster at the given address.
            ClusterError: a private one cannot be started.
        """
        if self._cluster is None:
            try:
                self._cluster = Cluster.connect(self._ray_address)
            except ClusterError as error:
                if self._ray_address is None:
                    raise
                raise NotRun(f"--ray-address {self._ray_address}: {error}") from error
        return self._cluster

    @property
    def rebuilds(self) -> int:
        """How often a world had to be started again after a crash, a hang or an error."""
        return sum(world.rebuilds for world in self._worlds.values())

    def close(self) -> None:
        """End every rank and the private cluster."""
        while self._worlds:
            self._worlds.popitem()[1].close()
        if self._cluster is not None and not self._shared:
            self._cluster.close()
            self._cluster = None

    def __enter__(self) -> Runner:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
