"""The head process: starts Ray closed and quiet, and ends every trace of it when its driver is gone.

Ray itself leaves processes for up to a minute, and its session directory for ever, when a driver is killed.
This process watches the driver, so it does not matter how it ends. It runs in a session of its own, which
Ctrl-C does not reach, and is the adoptive parent of all that Ray starts, so nothing gets out of sight.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import signal
import sys
import time
from pathlib import Path
from typing import Any, NoReturn

from fuzz.ranks.process import adopt_orphans, descendants, die_with_parent

END_SECONDS = 10.0
"""How long killed processes may take to be gone; a process that waits for a disk can take a while."""

_OBJECT_STORE_BYTES = 80 * 2**20


def main(directory: Path, driver: int, gpus: int | None) -> None:
    """Run Ray until the process `driver` ends or closes our standard input, then remove all of it.

    Prints one line of JSON on standard output when Ray is there: its address.
    """
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    adopt_orphans()
    try:
        watched = os.pidfd_open(driver)
        # Ray runs below another process: the one that starts it ends with it.
        me = os.getpid()
        starter = os.fork()
        if starter == 0:
            die_with_parent(me)
            _run_ray(directory, gpus)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        select.select([watched, sys.stdin, os.pidfd_open(starter)], [], [])
    finally:
        _kill_descendants()
        shutil.rmtree(directory, ignore_errors=True)


def _run_ray(directory: Path, gpus: int | None) -> NoReturn:
    # Whatever Ray starts must not keep the driver's pipe open.
    ready = os.dup(1)
    os.dup2(2, 1)

    import ray

    context: Any = ray.init(
        num_cpus=os.cpu_count(),
        num_gpus=gpus,
        object_store_memory=_OBJECT_STORE_BYTES,
        include_dashboard=False,
        logging_level=40,
        log_to_driver=False,
        _node_ip_address="127.0.0.1",
        _temp_dir=str(directory / "ray"),
    )
    os.write(ready, json.dumps({"address": context.address_info["gcs_address"]}).encode() + b"\n")
    os.close(ready)
    while True:
        signal.pause()


def _kill_descendants() -> None:
    limit = time.monotonic() + END_SECONDS
    while (alive := descendants(os.getpid())) and time.monotonic() < limit:
        for pid in alive:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        time.sleep(0.02)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]) if len(sys.argv) > 3 else None)
