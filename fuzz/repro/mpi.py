"""MPI in a script: mpi4py over the memory of tensors, in ranks that mpiexec starts."""

from __future__ import annotations

from collections.abc import Mapping

from corpus.case import Call, Case
from corpus.dtypes import DTYPES
from fuzz.backends.mpi_buffers import TYPES
from fuzz.repro.code import ReproError
from fuzz.repro.dialects import Dialect, Names

_MESSAGE = '''
def message(x, ranks=1):
    """A tensor in equal parts for so many ranks, as MPI takes it: memory, elements of a part, datatype.

    A view goes row by row: a derived datatype describes one, and its extent is the way to the next.
    """
    kind, count = TYPES[x.dtype], x.numel()
    if count and not x.is_contiguous():
        for extent, stride in reversed(list(zip(x.shape[1:], x.stride()[1:]))):
            kind = kind.Create_hvector(extent, 1, stride * x.element_size())
        kind = kind.Create_resized(0, x.stride(0) * x.element_size()).Commit()
        count = len(x)
    # The size only satisfies a check of mpi4py.
    memory = MPI.memory.fromaddress(x.data_ptr(), count * max(kind.Get_extent()[1], 1))
    return [memory, count // ranks, kind]
'''

_RANKS = """
def worker():
    faulthandler.dump_traceback_later(DEADLINE, exit=True)  # with exit status 1
    try:
        MPI.Init()
        wrong = run(MPI.COMM_WORLD.rank)
        MPI.Finalize()
    except Exception:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(2)  # the other ranks wait for this one
    sys.exit(1 if wrong else 0)


def main():
    if os.environ.keys() & {{"OMPI_COMM_WORLD_SIZE", "PMI_SIZE"}}:  # mpiexec has started this rank
        worker()
    print(MPI.Get_library_version().splitlines()[0].rstrip("\\0"), "mpi4py", mpi4py.__version__, flush=True)
    mpiexec = os.path.join(os.path.dirname(sys.executable), "{program}")
    command = [mpiexec, {options}"-n", str(WORLD), sys.executable, __file__]
    status = subprocess.run(command).returncode
    sys.exit(status if status in (0, 2) else 1)
"""

_UNWRITTEN = ("in_place", "counts", "split")


class Mpi(Dialect):
    """Every call as a C program would make it. Lists of tensors travel in one buffer."""

    modules = ("mpi4py",)
    program_name = "mpiexec"
    options: tuple[str, ...] = ()

    def imports(self, case: Case) -> tuple[str, ...]:
        """Only torch's; mpi4py comes after the environment is set."""
        return ()

    def setup(self, case: Case) -> list[str]:
        """Environment variables, mpi4py and `message`.

        Raises:
            ReproError: the case has what this version does not write.
        """
        flags = [name for name, _ in case.flags if name in _UNWRITTEN]
        if flags or case.illegal is not None or any(call.wait is not None for call in case.program):
            raise ReproError(f"MPI with {flags[0] if flags else 'an illegal program, or one that waits later'}")
        dtypes = dict.fromkeys(spec.dtype for _, spec in case.specs())
        if any(spec.layout.conj or spec.layout.neg for _, spec in case.specs()) or not set(dtypes) <= set(TYPES):
            raise ReproError("MPI with a lazy bit, or a dtype that it has not")
        types = ", ".join(f"torch.{name}: {_type(name)}" for name in dtypes)
        return [
            "",
            *super().setup(case),
            "import mpi4py",
            "",
            "mpi4py.rc.initialize = False  # not in the process that only starts the ranks",
            "from mpi4py import MPI",
            "",
            f"TYPES = {{{types}}}",
            *_MESSAGE.splitlines(),
        ]

    def call(self, case: Case, call: Call, names: Names) -> list[str]:
        """The lines of one call.

        Raises:
            ReproError: it has counts by rank in a list, or is MPI_Alltoallw.
        """
        specs = [case.tensor(name).on(rank) for name in call.inputs + call.outputs for rank in case.ranks(call)]
        comm = names.group.removeprefix(", group=") or "MPI.COMM_WORLD"
        writer = _Writer(case, call, names, comm, dense=all(spec.is_contiguous for spec in specs))
        return writer.lines()

    def new_group(self, name: str, ranks: list[int]) -> list[str]:
        """Only the members make it."""
        made = f"MPI.COMM_WORLD.Create_group(MPI.COMM_WORLD.group.Incl({ranks}))"
        return [f"{name} = {made} if rank in {ranks} else None"]

    def commands(self, size: int, file: str) -> list[str]:
        """mpiexec, or a plain run that calls it."""
        return [f"mpiexec -n {size} python {file}", f"python {file}  (calls the mpiexec beside it)"]

    def start(self, *, cuda: bool, timeout: int | None, repeats: int) -> list[str]:
        """A rank for each process that mpiexec starts.

        Raises:
            ReproError: the bug is a flaky one.
        """
        if repeats > 1:
            raise ReproError("this version repeats no program of MPI")
        options = "".join(f'"{option}", ' for option in self.options)
        return _RANKS.format(program=self.program_name, options=options).splitlines()


class Mpich(Mpi):
    """MPICH."""

    program_name = "mpiexec.gforker"

    def __init__(self) -> None:
        super().__init__("", "MPICH")


class OpenMpi(Mpi):
    """Open MPI."""

    options = ("--oversubscribe",)

    def __init__(self) -> None:
        super().__init__("", "Open MPI")


def _type(dtype: str) -> str:
    name = TYPES[dtype]
    return 'MPI.Datatype.fromcode("e")' if dtype == "float16" else f"MPI.{name.removeprefix('MPI_')}"


_OPERATORS: Mapping[str, str] = {
    "sum": "SUM",
    "product": "PROD",
    "max": "MAX",
    "min": "MIN",
    "band": "BAND",
    "bor": "BOR",
    "bxor": "BXOR",
}


class _Writer:
    """Writes one call. `dense`: all of its tensors are contiguous on every rank."""

    def __init__(self, case: Case, call: Call, names: Names, comm: str, *, dense: bool) -> None:
        self.call, self.names, self.comm, self.dense = call, names, comm, dense
        self.x, self.y, self.size = names.inputs, names.outputs, len(case.ranks(call))
        self.root = f", {call.root}" if call.op in ("broadcast", "reduce", "gather", "scatter") else ""
        dtypes = [case.tensor(name).spec.dtype for name in call.inputs]
        operator = _OPERATORS.get(str(call.reduce_op), "")
        if dtypes and DTYPES[dtypes[0]].name == "bool" and operator.startswith("B"):
            operator = f"L{operator[1:]}"
        self.op = f", MPI.{operator}" if operator else ""
        lists = [names for names in (call.inputs, call.outputs) if len(names) > 1]
        sizes = {case.tensor(name).on(rank).numel for each in lists for name in each for rank in case.ranks(call)}
        if len(sizes) > 1 or call.op == "all_to_all":
            raise ReproError(f"{call.op} of MPI with counts by rank: this version does not write it")

    def lines(self) -> list[str]:
        """The lines that make the call and wait for it."""
        x, y = f"message({self.x})", f"message({self.y})"
        match self.call.op:
            case "all_reduce":
                return self._dense("Allreduce", self.x)
            case "reduce":
                return self._dense("Reduce", self.x, where=f"{self.names.me} == {self.call.root}")
            case "reduce_scatter_tensor":
                return self._dense("Reduce_scatter_block", self.x, self.size)
            case "reduce_scatter":
                return [self._joined(self.x), *self._dense("Reduce_scatter_block", "joined", self.size)]
            case "broadcast":
                return [self._called("Bcast", x)]
            case "all_gather_into_tensor":
                return [self._called("Allgather", x, f"message({self.y}, {self.size})")]
            case "all_gather":
                return [self._joined(self.y), self._called("Allgather", x, self._parts()), *self._taken()]
            case "gather":
                root = f"if {self.names.me} == {self.call.root}:"
                taken = [root, *(f"    {line}" for line in self._taken())]
                return [self._joined(self.y), self._called("Gather", x, self._parts()), *taken]
            case "scatter":
                return [self._joined(self.x), self._called("Scatter", self._parts(), y)]
            case "all_to_all_single":
                return self._exchanged()
            case "send_recv":
                return [
                    f"if {self.names.me} == {self.call.root}:",
                    f"    {self._called('Send', x, str(self.call.peer))}",
                    f"if {self.names.me} == {self.call.peer}:",
                    f"    {self._called('Recv', y, str(self.call.root))}",
                ]
            case _:
                return [self._called("Barrier")]

    def _called(self, function: str, *arguments: str) -> str:
        given = (", ".join(arguments) + self.op + self.root).removeprefix(", ")
        if self.call.async_op:
            return f"{self.comm}.I{function.lower()}({given}).Wait()"
        return f"{self.comm}.{function}({given})"

    def _dense(self, function: str, x: str, parts: int = 1, where: str = "") -> list[str]:
        """A reduction takes predefined datatypes, so contiguous memory. `where`: who has a result."""
        cut = f", {parts}" if parts > 1 else ""
        if self.dense:
            receive = f"message({self.y})" + (f" if {where} else None" if where else "")
            return [self._called(function, f"message({x}{cut})", receive)]
        copied = f"{self.y}.copy_(dense)"
        return [
            f"sent, dense = {x}.contiguous(), {self.y}.clone(memory_format=torch.contiguous_format)",
            self._called(
                function, f"message(sent{cut})", "message(dense)" + (f" if {where} else None" if where else "")
            ),
            *([f"if {where}:", f"    {copied}"] if where else [copied]),
        ]

    def _joined(self, tensors: str) -> str:
        return f"joined = torch.cat([t.reshape(-1) for t in {tensors}])"

    def _parts(self) -> str:
        return f"message(joined, {self.size})"

    def _taken(self) -> list[str]:
        return [
            f"for out, part in zip({self.y}, joined.tensor_split({self.size})):",
            "    out.copy_(part.view(out.shape))",
        ]

    def _exchanged(self) -> list[str]:
        if self.call.splits is None:
            parts = [f"message({name}, {self.size})" for name in (self.x, self.y)]
            return [self._called("Alltoall", *parts)]
        raise ReproError("all_to_all_single of MPI with splits: this version does not write it")
