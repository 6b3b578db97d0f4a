"""MPI through mpi4py, over the memory of torch tensors: MPICH and Open MPI, each from its wheels.

What is promised is the MPI standard, version 4.1. Both are started by their own mpiexec (`fuzz.ranks.launch`).
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Mapping
from functools import cache
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from corpus.case import WORLD, Call, Case
from corpus.contract import Contract
from fuzz.backends.base import Backend, Place
from fuzz.backends.mpi_buffers import Buffers
from fuzz.backends.mpi_calls import CALLS, Given
from fuzz.backends.mpi_contract import contract
from fuzz.backends.mpi_flags import CALL, MPICH, MPICH_SIZES, OPENMPI, OPENMPI_SIZES

if TYPE_CHECKING:
    import torch


class Mpi(Backend):
    """Runs every call as a C program would: buffers, counts and datatypes."""

    library: ClassVar[str]
    """What the first line of MPI_Get_library_version has in it."""
    mpiexec: ClassVar[str]
    flags = CALL

    def __init__(self) -> None:
        self._mpi: Any = None
        # By ranks, how many groups of the same ranks the case has before it, and how they are made.
        self._comms: dict[tuple[tuple[int, ...], int, bool], Any] = {}
        self._routes: list[str] = []

    def contract(self, flags: Mapping[str, str]) -> Contract:
        """What the standard says; no flag changes it."""
        return contract(self.name)

    def unavailable(self) -> str | None:
        """Why the interpreter of the environment cannot run it: one of mpi4py, the mpiexec and torch is missing."""
        program = Path(self.python).parent / self.mpiexec
        if not program.exists():
            return f"no {program}; an environment with {self.name} has one (ci/targets/{self.name}.txt)"
        return _lacks(self.python)

    def open(self, place: Place) -> None:
        """Initialise MPI: the ranks are those that mpiexec started."""
        # The driver's environment has no mpi4py.
        mpi: Any = import_module("mpi4py.MPI")
        self._mpi = mpi
        if self.library not in mpi.Get_library_version():
            raise RuntimeError(f"mpi4py has loaded another library: {mpi.Get_library_version().splitlines()[0]}")
        world = mpi.COMM_WORLD
        if (world.rank, world.size) != (place.rank, place.size):
            raise RuntimeError(f"rank {world.rank} of {world.size}, not {place.rank} of {place.size}")

    def prepare(self, case: Case) -> None:
        """Make the communicators of the case's sub-groups, in the same order on every rank, and keep them."""
        split = dict(case.flags).get("split") == "1"
        world = self._mpi.COMM_WORLD
        for place in _places(case).values():
            if (*place, split) in self._comms:
                continue
            ranks = place[0]
            if split:
                inside = world.rank in ranks
                color = 0 if inside else self._mpi.UNDEFINED
                self._comms[*place, split] = world.Split(color, ranks.index(world.rank) if inside else 0)
            elif world.rank in ranks:
                self._comms[*place, split] = world.Create_group(world.group.Incl(ranks))

    def run(self, case: Case, call: Call, rank: int, tensors: Mapping[str, torch.Tensor]) -> Mapping[str, torch.Tensor]:
        """Run the call and wait for it; every output is the caller's, so nothing is returned."""
        return self.begin(case, call, rank, tensors)()

    def begin(
        self, case: Case, call: Call, rank: int, tensors: Mapping[str, torch.Tensor]
    ) -> Callable[[], Mapping[str, torch.Tensor]]:
        """Begin the call, and return what waits for its request, if it is asynchronous."""
        flags = dict(case.flags)
        buffers = Buffers(self._mpi)
        comm = self._mpi.COMM_WORLD
        if call.group != WORLD:
            comm = self._comms[*_places(case)[call.group], flags.get("split") == "1"]
        in_place, counts = flags.get("in_place") == "1", flags.get("counts") == "1"
        try:
            given = Given(self._mpi, buffers, case, call, rank, tensors, in_place=in_place, counts=counts)
            function, arguments = CALLS[call.op](given)
            if not function:
                return dict
            name = f"I{function.lower()}" if call.async_op else function
            self._routes.append(f"{self.name}:{name}")
            request = getattr(comm, name)(*arguments)
        except BaseException:
            buffers.release()
            raise

        def wait() -> Mapping[str, torch.Tensor]:
            if call.async_op:
                request.Wait()
            buffers.finish()
            return {}

        return wait

    def routes(self) -> tuple[str, ...]:
        """The MPI function of each call."""
        taken, self._routes = tuple(self._routes), []
        return taken

    def versions(self) -> tuple[tuple[str, str], ...]:
        """Versions of the library, of mpi4py and of torch."""
        import torch

        said = self._mpi.Get_library_version().splitlines()[0].replace("\0", "")
        return ((self.name, said), ("mpi4py", version("mpi4py")), ("torch", str(torch.__version__)))

    def close(self) -> None:
        """Finalize MPI, which all ranks do together."""
        if self._mpi is not None and not self._mpi.Is_finalized():
            self._mpi.Finalize()


class Mpich(Mpi):
    """MPICH on one machine, over shared memory."""

    name = "mpich"
    summary = "MPICH through mpi4py, over shared memory"
    launcher = "mpich"
    flags = MPICH
    thresholds = MPICH_SIZES
    library = "MPICH"
    mpiexec = "mpiexec.gforker"


class OpenMpi(Mpi):
    """Open MPI on one machine, over shared memory."""

    name = "openmpi"
    summary = "Open MPI through mpi4py, over shared memory"
    launcher = "openmpi"
    flags = OPENMPI
    thresholds = OPENMPI_SIZES
    library = "Open MPI"
    mpiexec = "mpiexec"


def _places(case: Case) -> dict[str, tuple[tuple[int, ...], int]]:
    """By name of a sub-group: its ranks, and how many groups of the same ranks come before it."""
    ranks = [group.ranks for group in case.world.groups]
    return {
        group.name: (group.ranks, ranks[:place].count(group.ranks)) for place, group in enumerate(case.world.groups)
    }


@cache
def _lacks(python: str) -> str | None:
    code = "import importlib.util as u; print(*(m for m in ('mpi4py', 'numpy', 'torch') if u.find_spec(m) is None))"
    try:
        done = subprocess.run([python, "-P", "-c", code], capture_output=True, text=True, check=False)
    except OSError as error:
        return f"cannot run {python}: {error.strerror}"
    if done.returncode:
        return f"{python} fails: {done.stderr.strip()[-200:]}"
    return f"{python} has no {done.stdout.strip()}" if done.stdout.strip() else None
