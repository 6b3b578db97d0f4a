"""One rank's side of a case: build the tensors, run the calls, let the oracles look."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

import torch

from corpus.case import LATE_SECONDS, Call, Case
from corpus.codec import loads, text_digest
from corpus.meaning import Flow, uses
from fuzz.backends import load
from fuzz.backends.base import Backend, Place
from fuzz.faults import wrap
from oracles.buffers import Buffer, build
from oracles.observation import Observation, Status
from oracles.observe import observe

UNLIMITED = 1 << 62
"""The driver has checked the memory budget already."""


class Executor:
    """Holds this rank's place in the world, and runs cases there."""

    def __init__(
        self, *, backend: str, rank: int, size: int, init_method: str, device: int | None, timeout: float
    ) -> None:
        self.rank = rank
        self.device = torch.device("cpu") if device is None else torch.device("cuda", device)
        self.backend = load(backend)
        self.backend.open(Place(rank=rank, size=size, init_method=init_method, device=device, timeout=timeout))

    def run(self, case_text: str, begun: Callable[[int], None]) -> Observation:
        """Run a case and return what this rank saw: status OK, or RAISED with the library's error.

        `begun` is told the index of each call before it starts.
        """
        started = time.perf_counter()
        case = loads(case_text, UNLIMITED)
        contract = self.backend.contract(dict(case.flags))
        buffers = build(case, self.rank, self.device)
        run = Run(self, case, buffers)
        run.calls(begun)
        reports = {} if run.error is not None else observe(case, contract, self.rank, buffers)
        return Observation(
            rank=self.rank,
            status=Status.OK if run.error is None else Status.RAISED,
            digest=text_digest(case_text),
            call=run.call,
            error="" if run.error is None else str(run.error),
            error_type="" if run.error is None else type(run.error).__name__,
            seconds=time.perf_counter() - started,
            library_seconds=run.seconds,
            routes=self.backend.routes(),
            versions=self.backend.versions(),
            reports=reports,
        )

    def close(self) -> None:
        """Leave the world."""
        self.backend.close()


class Run:
    """The calls of one case on one rank, until the last or the first that raises."""

    def __init__(self, executor: Executor, case: Case, buffers: dict[str, Buffer]) -> None:
        self.executor = executor
        self.case = case
        self.buffers = buffers
        self.call = -1
        self.error: Exception | None = None
        self.seconds = 0.0
        # By call, what waits for its work and gives the tensors that it returned.
        self._pending: dict[int, Callable[[], Mapping[str, torch.Tensor]]] = {}

    def calls(self, begun: Callable[[int], None]) -> None:
        """Run the calls; keep the tensors that they return, the first error, and the time spent in the library."""
        executor, case = self.executor, self.case
        backend = wrap(executor.backend, case.fault)
        program = case.calls(executor.rank)
        flow = Flow(case) if case.illegal is None and len(program) > 1 else None
        started = time.perf_counter()
        try:
            backend.prepare(case)
            for index, call in enumerate(program):
                self.call = index
                begun(index)
                if executor.rank in case.ranks(call):
                    if flow is not None:
                        self._save(flow, index, call)
                    self._start(backend, index, call)
                self._finish(index, begun)
            if executor.device.type == "cuda":
                torch.cuda.synchronize(executor.device)
        except Exception as error:  # whatever a library under test raises is an observation
            self.error = error
        self.seconds = time.perf_counter() - started

    def _save(self, flow: Flow, index: int, call: Call) -> None:
        """Keep what an earlier call has used and this one overwrites: the oracles look at it afterwards."""
        rank = self.executor.rank
        used = {
            name
            for earlier in self.case.program[:index]
            for use in (uses(self.case, earlier, rank),)
            for name in use.inputs + use.outputs
        }
        for name in dict.fromkeys(uses(self.case, call, rank).outputs):
            if name in used and flow.overwritten(name, rank, index - 1) == index:
                self.buffers[name].save(index)

    def _start(self, backend: Backend, index: int, call: Call) -> None:
        """Begin a call; its work is pending until `_finish`."""
        rank = self.executor.rank
        use = uses(self.case, call, rank)
        views = {name: self.buffers[name].tensor for name in use.inputs + use.outputs}
        given = {name: view for name, view in views.items() if view is not None}
        if call.late is not None and self.case.ranks(call)[call.late] == rank:
            time.sleep(LATE_SECONDS)
        if call.local:
            _compute(call, given)
            return
        self.poison(use.outputs)
        if call.wait is None:
            self._keep(backend.run(self.case, call, rank, given))
        else:
            self._pending[index] = backend.begin(self.case, call, rank, given)

    def _finish(self, index: int, begun: Callable[[int], None]) -> None:
        """Wait for the works that are due after call `index`, the newest first."""
        for pending in sorted(self._pending, reverse=True):
            if self.case.calls(self.executor.rank)[pending].wait == index:
                self.call = pending
                begun(pending)
                self._keep(self._pending.pop(pending)())

    def _keep(self, returned: Mapping[str, torch.Tensor]) -> None:
        for name, tensor in returned.items():
            self.buffers[name].returned = tensor

    def poison(self, outputs: tuple[str, ...]) -> None:
        """Free a block full of 0xA5 of the size that the library will ask for: what it leaves unwritten then shows."""
        for name in outputs:
            spec = self.buffers[name].spec
            if spec.payload is None and spec.numel:
                torch.empty(spec.storage_bytes, dtype=torch.uint8, device=self.executor.device).fill_(0xA5)


def _compute(call: Call, given: Mapping[str, torch.Tensor]) -> None:
    """A local computation."""
    x, out = given[call.inputs[0]], given[call.outputs[0]]
    if call.op == "copy":
        out.copy_(x)
    elif call.op == "negate":
        out.copy_(-x)
    else:
        out.copy_(x + x)
