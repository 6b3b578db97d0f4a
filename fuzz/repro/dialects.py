"""How a library's calls are written in a script: what a backend adds to have repro scripts of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module

from corpus.case import WORLD, Call, Case
from fuzz.repro.code import ReproError


@dataclass(frozen=True, slots=True)
class Names:
    """What a call's arguments are called in the script.

    `inputs` and `outputs` are variables (tensors, or lists of them where the collective takes lists), `me` is this
    rank's place in the group, and `group` the argument that names a sub-group (empty for the world).
    """

    inputs: str
    outputs: str
    me: str
    group: str


class Dialect:
    """torch.distributed over one of its process-group backends; other libraries override what they have otherwise.

    `modules`: those that a script imports beside torch, which an interpreter may not have.
    """

    modules: tuple[str, ...] = ()
    modes: tuple[str, ...] = ("eager",)

    def __init__(self, process_group: str = "gloo", library: str = "") -> None:
        self.process_group = process_group
        self.library = library or process_group

    def imports(self, case: Case) -> tuple[str, ...]:
        """Import lines of the library, after torch's."""
        return ()

    def setup(self, case: Case) -> list[str]:
        """Lines at module level: environment variables, functions."""
        return [f'os.environ["{name}"] = {value!r}' for name, value in case.flags]

    def call(self, case: Case, call: Call, names: Names) -> list[str]:
        """The lines of one call, as the ranks of its group run them."""
        return _CALLS[call.op](case, call, names)

    def region(self, case: Case, calls: Sequence[Call], names: Sequence[Names]) -> list[str]:
        """The lines of the calls of a region, as the ranks of their group run them."""
        if calls[0].op == "send_recv":
            return _batch(case, calls, names)
        group = names[0].group.removeprefix(", ")
        given = f"{group}{', ' if group else ''}async_ops={calls[0].async_op}"
        lines = [
            line
            for call, each in zip(calls, names, strict=True)
            for line in self.call(case, replace(call, async_op=False), each)
        ]
        return [
            f"with dist.distributed_c10d._coalescing_manager({given}) as works:",
            *(f"    {line}" for line in lines),
            "works.wait()",
        ]

    def new_group(self, name: str, ranks: list[int]) -> list[str]:
        """Lines that make the sub-group `name`, as every rank runs them."""
        order = "" if ranks == sorted(ranks) else ", sort_ranks=False"
        return [f"{name} = dist.new_group({ranks}{order})"]

    def program(self, case: Case, calls: list[str], given: list[str]) -> list[str]:
        """The calls of a rank as one piece of code; `given` are the variables of its tensors."""
        return calls

    def commands(self, size: int, file: str) -> list[str]:
        """The commands that run the script."""
        return [f"python {file}", f"torchrun --nproc-per-node {size} {file}"]

    def start(self, *, cuda: bool, timeout: int | None, repeats: int) -> list[str]:
        """The functions that start and watch the ranks; `main` exits with the script's status.

        The parent computes nothing, so that it may fork. `timeout`: seconds after which the library gives up (None: its
        own). `repeats`: how often `run` is called, until it shows something.
        """
        device = """
    torch.cuda.set_device(rank % torch.cuda.device_count())
    torch.set_default_device("cuda")"""
        start = f'"{self.process_group}", init_method=init_method, rank=rank, world_size=WORLD'
        if timeout is not None:
            start += f", timeout=timedelta(seconds={timeout})"
        return _PROCESSES.format(start=start, device=device if cuda else "", tried=tried(repeats)).splitlines()


def tried(repeats: int) -> str:
    """The line that runs a rank, or those that run it until one rank shows something."""
    if repeats == 1:
        return "wrong = run(rank)"
    return f"""for _ in range({repeats}):  # it does not show every time
            faulthandler.dump_traceback_later(DEADLINE, exit=True)
            wrong = run(rank)
            if "wrong" in told(rank, "wrong" if wrong else "right"):
                break"""


_PROCESSES = """
def worker(rank, init_method):
    faulthandler.dump_traceback_later(DEADLINE, exit=True)  # with exit status 1{device}
    try:
        dist.init_process_group({start})
        {tried}
        dist.destroy_process_group()
    except Exception:
        traceback.print_exc()
        sys.exit(2)
    sys.exit(1 if wrong else 0)


def main():
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    if "RANK" in os.environ:  # torchrun has started them
        worker(int(os.environ["RANK"]), "env://")
    print("torch", torch.__version__, flush=True)
    with tempfile.TemporaryDirectory() as folder:
        ranks = [Process(target=worker, args=(r, f"file://{{folder}}/store"), daemon=True) for r in range(WORLD)]
        for process in ranks:
            process.start()
        for rank, process in enumerate(ranks):
            process.join()
            if process.exitcode < 0:
                print(f"rank {{rank}} was killed by {{signal.Signals(-process.exitcode).name}}")
    codes = {{process.exitcode for process in ranks}}
    sys.exit(max(codes) if codes <= {{0, 2}} else 1)
"""


def _batch(case: Case, calls: Sequence[Call], names: Sequence[Names]) -> list[str]:
    """Sends and receives that are one batch; a rank that has none takes no part."""
    lines = ["batch = []"]
    for call, each in zip(calls, names, strict=True):
        source, target = _global(case, call, call.root), _global(case, call, call.peer)
        lines += [
            f"if rank == {source}:",
            f"    batch.append(dist.P2POp(dist.isend, {each.inputs}, {target}{each.group}))",
            f"if rank == {target}:",
            f"    batch.append(dist.P2POp(dist.irecv, {each.outputs}, {source}{each.group}))",
        ]
    return [*lines, "for work in dist.batch_isend_irecv(batch) if batch else []:", "    work.wait()"]


def _done(text: str, call: Call) -> list[str]:
    """A call of torch.distributed, waited for where it is asynchronous."""
    return [f"{text}, async_op=True).wait()" if call.async_op else f"{text})"]


def _op(call: Call) -> str:
    if call.reduce_op == "sum":
        return ""
    if call.reduce_op == "premul_sum":
        return f", op=dist._make_nccl_premul_sum({call.factor})"
    return f", op=dist.ReduceOp.{str(call.reduce_op).upper()}"


def _global(case: Case, call: Call, member: int | None) -> int:
    assert member is not None
    return case.ranks(call)[member]


def _all_reduce(case: Case, call: Call, names: Names) -> list[str]:
    return _done(f"dist.all_reduce({names.inputs}{_op(call)}{names.group}", call)


def _reduce(case: Case, call: Call, names: Names) -> list[str]:
    root = _global(case, call, call.root)
    return _done(f"dist.reduce({names.inputs}, dst={root}{_op(call)}{names.group}", call)


def _broadcast(case: Case, call: Call, names: Names) -> list[str]:
    return _done(f"dist.broadcast({names.inputs}, src={_global(case, call, call.root)}{names.group}", call)


def _gathering(case: Case, call: Call, names: Names) -> list[str]:
    return _done(f"dist.{call.op}({names.outputs}, {names.inputs}{names.group}", call)


def _reduce_scattering(case: Case, call: Call, names: Names) -> list[str]:
    return _done(f"dist.{call.op}({names.outputs}, {names.inputs}{_op(call)}{names.group}", call)


def _gather(case: Case, call: Call, names: Names) -> list[str]:
    root = _global(case, call, call.root)
    lists = f"{names.outputs} if rank == {root} else None"
    return _done(f"dist.gather({names.inputs}, {lists}, dst={root}{names.group}", call)


def _scatter(case: Case, call: Call, names: Names) -> list[str]:
    root = _global(case, call, call.root)
    lists = f"{names.inputs} if rank == {root} else None"
    return _done(f"dist.scatter({names.outputs}, {lists}, src={root}{names.group}", call)


def _all_to_all_single(case: Case, call: Call, names: Names) -> list[str]:
    splits = ""
    if call.splits is not None:
        splits = f", [row[{names.me}] for row in SPLITS], SPLITS[{names.me}]"
    return _done(f"dist.all_to_all_single({names.outputs}, {names.inputs}{splits}{names.group}", call)


def _send_recv(case: Case, call: Call, names: Names) -> list[str]:
    source, target = _global(case, call, call.root), _global(case, call, call.peer)
    send, receive, wait = ("isend", "irecv", ".wait()") if call.async_op else ("send", "recv", "")
    return [
        f"if rank == {source}:",
        f"    dist.{send}({names.inputs}, dst={target}{names.group}){wait}",
        f"if rank == {target}:",
        f"    dist.{receive}({names.outputs}, src={source}{names.group}){wait}",
    ]


def _barrier(case: Case, call: Call, names: Names) -> list[str]:
    group = names.group.removeprefix(", ")
    if call.async_op:
        return [f"dist.barrier({group}{', ' if group else ''}async_op=True).wait()"]
    return [f"dist.barrier({group})"]


_CALLS: Mapping[str, Callable[[Case, Call, Names], list[str]]] = {
    "all_reduce": _all_reduce,
    "reduce": _reduce,
    "broadcast": _broadcast,
    "all_gather": _gathering,
    "all_gather_into_tensor": _gathering,
    "reduce_scatter": _reduce_scattering,
    "reduce_scatter_tensor": _reduce_scattering,
    "gather": _gather,
    "scatter": _scatter,
    "all_to_all_single": _all_to_all_single,
    "all_to_all": _gathering,
    "send_recv": _send_recv,
    "barrier": _barrier,
}


class VllmModel(Dialect):
    """The model of vLLM's out-of-place all-reduce, written out in the script."""

    def __init__(self) -> None:
        super().__init__("gloo", "vLLM's all_reduce, modelled over gloo")

    def setup(self, case: Case) -> list[str]:
        """The operator, with the threshold that the flags and the fault resolve to."""
        flags = dict(case.flags)
        given = flags.get("VLLM_INPLACE_AR_MIN")
        on = flags.get("VLLM_V41_PACKED_KV") == "1" or case.fault == "inplace-above-threshold"
        threshold = int(given) if given is not None else 4194304 if on else 0
        signature = "x, group=None" if any(call.group != WORLD for call in case.program) else "x"
        group = ", group=group" if "group" in signature else ""
        note = "".join(f"\n    # {name}={value}" for name, value in case.flags)
        in_place = f"""
    if x.numel() >= {threshold}:
        dense = x.contiguous()
        dist.all_reduce(dense{group})
        return x if dense is x else x.copy_(dense)"""
        return f'''
def all_reduce({signature}):
    """A model of torch.ops.vllm.all_reduce: out of place, so a caller may read x again afterwards."""{note}{
            in_place if threshold else ""
        }
    out = torch.empty_like(x, memory_format=torch.contiguous_format)
    out.copy_(x)
    dist.all_reduce(out{group})
    return out
'''.splitlines()

    def call(self, case: Case, call: Call, names: Names) -> list[str]:
        """`y = all_reduce(x)`, or only the call where nothing is asked of y."""
        keep = f"{names.outputs} = " if names.outputs else ""
        return [f"{keep}all_reduce({names.inputs}{names.group})"]


DIALECTS: Mapping[str, Callable[[], Dialect] | str] = {
    "dtensor": "fuzz.repro.dialects_dtensor:DTensor",
    "functional": "fuzz.repro.functional:Functional",
    "gloo": Dialect,
    "mpich": "fuzz.repro.mpi:Mpich",
    "nccl": lambda: Dialect("nccl"),
    "openmpi": "fuzz.repro.mpi:OpenMpi",
    "ray": "fuzz.repro.ray_tasks:RayTasks",
    "threaded": "fuzz.repro.threaded:Threaded",
    "vllm-model": VllmModel,
}
"""By a backend's name; those of other files by where they are."""


def dialect(backend: str) -> Dialect:
    """Return how a backend's calls are written.

    Raises:
        ReproError: nobody said how.
    """
    try:
        found = DIALECTS[backend]
    except KeyError:
        raise ReproError(f"backend {backend!r:.80}: no dialect says how its calls are written in a script") from None
    if isinstance(found, str):
        module, _, attribute = found.partition(":")
        found = getattr(import_module(module), attribute)
    made = found()
    assert isinstance(made, Dialect)
    return made
