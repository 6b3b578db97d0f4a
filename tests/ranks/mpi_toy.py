"""The toy executor over MPI: it runs a rank's commands, and adds up an array over the world at the end."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from mpi4py import MPI
from toy import Toy

from oracles.observation import Observation, Status


class MpiToy(Toy):
    """Knows besides: abort the world, and raise an error of MPI's."""

    def __init__(
        self, *, backend: str, rank: int, size: int, init_method: str, device: int | None, timeout: float
    ) -> None:
        if f"open-{rank}" in backend:
            raise RuntimeError("no such backend")
        self._rank = rank
        self._device = device
        assert (MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size) == (rank, size)

    def run(self, case_text: str, begun: Callable[[int], None]) -> Observation:
        reports: dict[str, Any] = {}
        call = -1
        try:
            for call, command in enumerate(json.loads(case_text).get(str(self._rank), [])):
                begun(call)
                reports[command] = self._do(command)
            call += 1
            begun(call)
            reports["sum"] = MPI.COMM_WORLD.allreduce(self._rank + 1.0)
        except RuntimeError as error:
            return Observation(self._rank, Status.RAISED, call=call, error=str(error), error_type=type(error).__name__)
        return Observation(self._rank, Status.OK, call=call, reports=reports)

    def close(self) -> None:
        MPI.Finalize()

    def _do(self, command: str) -> Any:
        if command == "MPI_Abort":
            MPI.COMM_WORLD.Abort(7)
            return super()._do("hang")  # MPICH returns, and leaves it to mpiexec to end the rank
        if command == "invalid rank":
            MPI.COMM_WORLD.send(None, dest=99)
        return super()._do(command)
