"""One rank's side of a case: build the tensors, run the calls, let the oracles look."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import torch

from corpus.case import LATE_SECONDS, Call, Case
from corpus.codec import loads, text_digest
from corpus.contract import Contract
from corpus.meaning import Flow, region, uses
from fuzz.backends import make
from fuzz.backends.base import Backend, Place
from fuzz.faults import wrap
from oracles import barrier, illegal, schema
from oracles.buffers import Buffer, build
from oracles.observation import Observation, Status
from oracles.observe import observe

T = TypeVar("T")

_LIBC = ctypes.CDLL(None)

UNLIMITED = 1 << 62
"""The driver has checked the memory budget already."""


def preload(backend: str) -> None:
    """Import what ranks of a backend need besides. Called in the process that they are forked from."""
    if type(make(backend)).operator is not Backend.operator:
        schema.prepare()


class Executor:
    """Holds this rank's place in the world, and runs cases there."""

    def __init__(
        self, *, backend: str, rank: int, size: int, init_method: str, device: int | None, timeout: float
    ) -> None:
        self.rank = rank
        self.timeout = timeout
        self.device = torch.device("cpu") if device is None else torch.device("cuda", device)
        self.backend = make(backend)
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
        reports = run.reports(contract)
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


class _RaisedError(Exception):
    """The library under test raised `error`."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


class Run:
    """The calls of one case on one rank, until the last or the first that raises."""

    def __init__(self, executor: Executor, case: Case, buffers: dict[str, Buffer]) -> None:
        self.executor = executor
        self.case = case
        self.buffers = buffers
        self.call = -1
        self.error: Exception | None = None
        self.seconds = 0.0
        self._waited = 0.0
        self._filling = False
        # When this rank entered and left each barrier, by the call's index.
        self._barriers: dict[int, tuple[float, float]] = {}
        self._watches: list[schema.Watch] = []
        # By call, what waits for its work and gives the tensors that it returned.
        self._pending: dict[int, Callable[[], Mapping[str, torch.Tensor]]] = {}

    def calls(self, begun: Callable[[int], None]) -> None:
        """Run the calls; keep the tensors that they return, the first error, and the time spent in the library."""
        executor, case = self.executor, self.case
        backend = wrap(executor.backend, case.fault)
        program = case.calls(executor.rank)
        flow = Flow(case) if case.illegal is None and len(program) > 1 else None
        try:
            self._library(lambda: backend.prepare(case))
            if case.mode != "eager":
                self.call = 0
                begun(0)
                self._whole(backend)
                program = ()
            for index, call in enumerate(program):
                self.call = index
                begun(index)
                self._waited = 0.0
                if executor.rank in case.ranks(call):
                    if flow is not None:
                        self._save(flow, index, call)
                    if call.region is None:
                        self._start(backend, index, call)
                    elif (together := region(program, index))[-1] == index:
                        self._region(backend, [program[place] for place in together])
                self._finish(index, begun)
            if executor.device.type == "cuda":
                self._library(lambda: torch.cuda.synchronize(executor.device))
        except _RaisedError as raised:
            self.error = raised.error
        finally:
            if self._filling:
                _fill_new_memory(None)

    def _library(self, work: Callable[[], T]) -> T:
        """Have the library under test do something. What it raises is an observation; what we raise is our own defect.

        Raises:
            _RaisedError: the library raised.
        """
        started = time.perf_counter()
        try:
            return work()
        except Exception as error:
            raise _RaisedError(error) from error
        finally:
            spent = time.perf_counter() - started
            self.seconds += spent
            self._waited += spent

    def reports(self, contract: Contract) -> dict[str, Any]:
        """What the oracles see of the tensors: of a legal program that raised, nothing."""
        if self.case.illegal is not None:
            # Half of it: what a busy machine adds to an error that comes at once is far less.
            timed_out = self._waited >= self.executor.timeout / 2
            raised = None if self.error is None else max(self.call, 0)
            rank = self.executor.rank
            return illegal.observe(self.case, contract, rank, self.buffers, raised=raised, timed_out=timed_out)
        if self.error is not None:
            return {}
        seen = observe(self.case, contract, self.executor.rank, self.buffers)
        return {**seen, "barrier": barrier.observe(self._barriers), "schema": schema.observe(self._watches)}

    def _whole(self, backend: Backend) -> None:
        """Run the program in one piece."""
        views = {name: buffer.view for name, buffer in self.buffers.items() if buffer.view is not None}
        self.poison(tuple(self.buffers))
        self._keep(self._library(lambda: backend.run_program(self.case, self.executor.rank, views)))

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

    def _given(self, call: Call) -> dict[str, torch.Tensor]:
        """The views that this rank passes to a call, when it begins: late where that is asked for."""
        rank = self.executor.rank
        use = uses(self.case, call, rank)
        if call.late is not None and self.case.ranks(call)[call.late] == rank:
            time.sleep(LATE_SECONDS)
        if not call.local:
            self.poison(use.outputs)
        views = {name: self.buffers[name].tensor for name in use.inputs + use.outputs}
        return {name: view for name, view in views.items() if view is not None}

    def _region(self, backend: Backend, calls: list[Call]) -> None:
        """Run the calls of a region as a unit."""
        given = {name: view for call in calls for name, view in self._given(call).items()}
        self._keep(self._library(lambda: backend.run_region(self.case, calls, self.executor.rank, given)))

    def _start(self, backend: Backend, index: int, call: Call) -> None:
        """Begin a call; its work is pending until `_finish`."""
        rank = self.executor.rank
        given = self._given(call)
        if call.local:
            _compute(call, given)
            return
        entered = time.monotonic()
        if call.wait is None:
            self._run(backend, index, call, given)
        else:
            self._pending[index] = self._library(lambda: backend.begin(self.case, call, rank, given))
        if call.op == "barrier" and call.wait is None:
            self._barriers[index] = entered, time.monotonic()

    def _run(self, backend: Backend, index: int, call: Call, given: Mapping[str, torch.Tensor]) -> None:
        """Run a call and wait for it; where it is a registered operator, watch what that says of itself."""
        rank = self.executor.rank
        operator = backend.operator(self.case, call, rank, given)
        watch = None if operator is None else schema.Watch(index, *operator)
        returned = self._library(lambda: backend.run(self.case, call, rank, given))
        self._keep(returned)
        if watch is not None:
            watch.returned([returned[name] for name in call.outputs if name in returned])
            self._watches.append(watch)

    def _finish(self, index: int, begun: Callable[[int], None]) -> None:
        """Wait for the works that are due after call `index`, the newest first."""
        for pending in sorted(self._pending, reverse=True):
            if self.case.calls(self.executor.rank)[pending].wait == index:
                self.call = pending
                begun(pending)
                self._keep(self._library(self._pending.pop(pending)))

    def _keep(self, returned: Mapping[str, torch.Tensor]) -> None:
        for name, tensor in returned.items():
            self.buffers[name].returned = tensor

    def poison(self, outputs: tuple[str, ...]) -> None:
        """If the library is to allocate an output, let new memory be full of 0xA5: what it leaves unwritten then shows.

        The C library fills it; of a GPU, a block of the size that will be asked for is filled and freed.
        """
        for name in outputs:
            spec = self.buffers[name].spec
            if spec.payload is None and spec.numel:
                self._filling = True
                _fill_new_memory(0xA5)
                torch.empty(spec.storage_bytes, dtype=torch.uint8, device=self.executor.device).fill_(0xA5)


def _fill_new_memory(byte: int | None) -> None:
    """Let the C library fill the memory that it hands out with this byte; None: leave it as it is."""
    if hasattr(_LIBC, "mallopt"):
        # glibc fills new memory with the complement of M_PERTURB (-6), and none where that is 0.
        _LIBC.mallopt(-6, 0 if byte is None else byte ^ 0xFF)


def _compute(call: Call, given: Mapping[str, torch.Tensor]) -> None:
    """A local computation."""
    x, out = given[call.inputs[0]], given[call.outputs[0]]
    if call.op == "copy":
        out.copy_(x)
    elif call.op == "negate":
        out.copy_(-x)
    else:
        out.copy_(x + x)
