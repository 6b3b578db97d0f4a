"""torch's threaded process group in a script: ranks that are threads."""

from __future__ import annotations

from corpus.case import Case
from fuzz.repro.code import ReproError
from fuzz.repro.dialects import Dialect

_THREADS = """
def worker(rank, store, wrong):
    dist.init_process_group("threaded", rank=rank, world_size=WORLD, store=store)
    try:
        wrong[rank] = run(rank)
    except BaseException:
        traceback.print_exc()
        os._exit(2)  # the other ranks wait for this one


def main():
    faulthandler.dump_traceback_later(DEADLINE, exit=True)  # with exit status 1
    print("torch", torch.__version__, flush=True)
    torch._C._distributed_c10d._set_thread_isolation_mode(True)
    multi_threaded_pg._install_threaded_pg()
    store, wrong = dist.HashStore(), {{}}
    ranks = [threading.Thread(target=worker, args=(r, store, wrong)) for r in range(WORLD)]
    for thread in ranks:
        thread.start()
    for thread in ranks:
        thread.join()
    sys.exit(1 if any(wrong.values()) else 0)
"""


class Threaded(Dialect):
    """torch.testing._internal.distributed.multi_threaded_pg."""

    def __init__(self) -> None:
        super().__init__("threaded", "the threaded process group of torch's tests")

    def imports(self, case: Case) -> tuple[str, ...]:
        """The module that has it."""
        return ("from torch.testing._internal.distributed import multi_threaded_pg",)

    def commands(self, size: int, file: str) -> list[str]:
        """The ranks are threads, which nothing else can start."""
        return [f"python {file}"]

    def start(self, *, cuda: bool, timeout: int | None, repeats: int) -> list[str]:
        """A thread for each rank, each with a default process group of its own.

        Raises:
            ReproError: the bug is a flaky one.
        """
        if repeats > 1:
            raise ReproError("this version repeats no program of threads")
        return _THREADS.format().splitlines()
