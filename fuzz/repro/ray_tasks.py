"""ray.util.collective in a script: ranks that are Ray's tasks."""

from __future__ import annotations

from collections.abc import Mapping

from corpus.case import WORLD, Call, Case
from fuzz.repro.code import ReproError
from fuzz.repro.dialects import Dialect, Names

_TASKS = """
@ray.remote(num_cpus=0, max_retries=0)
def worker(rank):
    collective.init_collective_group(WORLD, rank, "gloo")
    with contextlib.redirect_stdout(io.StringIO()) as said:
        wrong = run(rank)
    return bool(wrong), said.getvalue()


def main():
    print("ray", ray.__version__, "torch", torch.__version__, flush=True)
    try:
        ray.init(num_cpus=WORLD, include_dashboard=False, log_to_driver=False, _node_ip_address="127.0.0.1")
    except Exception:
        traceback.print_exc()
        sys.exit(2)
    ranks = [worker.remote(rank) for rank in range(WORLD)]
    status = 0
    for rank, result in enumerate(ranks):
        try:
            wrong, said = ray.get(result, timeout=DEADLINE)
        except ray.exceptions.RayTaskError:
            traceback.print_exc()
            sys.exit(2)
        except ray.exceptions.GetTimeoutError:
            print(f"rank {rank} did not return within {DEADLINE} s", flush=True)
            sys.exit(1)
        except ray.exceptions.WorkerCrashedError as error:
            print(f"rank {rank}: {error}", flush=True)
            sys.exit(1)
        print(said, end="", flush=True)
        status |= wrong
    sys.exit(status)
"""

_OPS: Mapping[str, str] = {
    "all_reduce": "allreduce",
    "broadcast": "broadcast",
    "reduce": "reduce",
    "all_gather": "allgather",
    "reduce_scatter": "reducescatter",
    "barrier": "barrier",
}


class RayTasks(Dialect):
    """ray.util.collective over its gloo backend."""

    modules = ("ray",)

    def __init__(self) -> None:
        super().__init__("gloo", "ray.util.collective over gloo")

    def imports(self, case: Case) -> tuple[str, ...]:
        """Ray."""
        reduces = any(call.reduce_op not in (None, "sum") for call in case.program)
        types = ("from ray.util.collective.types import ReduceOp",) if reduces else ()
        return ("import ray", "from ray.util import collective", *types)

    def call(self, case: Case, call: Call, names: Names) -> list[str]:
        """The call; groups have names."""
        group = "default" if call.group == WORLD else names.group.removeprefix(", group=")
        op = f", ReduceOp.{str(call.reduce_op).upper()}" if call.reduce_op not in (None, "sum") else ""
        name = f', "{group}"' if group != "default" or op else ""
        if call.op == "send_recv":
            return [
                f"if {names.me} == {call.root}:",
                f"    collective.send({names.inputs}, {call.peer}{name})",
                f"if {names.me} == {call.peer}:",
                f"    collective.recv({names.outputs}, {call.root}{name})",
            ]
        tensors = {
            "all_gather": f"{names.outputs}, {names.inputs}",
            "reduce_scatter": f"{names.outputs}, {names.inputs}",
            "barrier": "",
        }.get(call.op, names.inputs)
        root = f", {call.root}" if call.op in ("broadcast", "reduce") else ""
        return [f"collective.{_OPS[call.op]}({(tensors + root + name + op).removeprefix(', ')})"]

    def new_group(self, name: str, ranks: list[int]) -> list[str]:
        """Only the members make it."""
        made = f'collective.init_collective_group({len(ranks)}, {ranks}.index(rank), "gloo", "{name}")'
        return [f"if rank in {ranks}:", f"    {made}"]

    def commands(self, size: int, file: str) -> list[str]:
        """The script starts Ray on this machine."""
        return [f"python {file}"]

    def start(self, *, cuda: bool, timeout: int | None, repeats: int) -> list[str]:
        """A task for each rank.

        Raises:
            ReproError: the bug is a flaky one.
        """
        if repeats > 1:
            raise ReproError("this version repeats no program of Ray")
        return _TASKS.splitlines()
