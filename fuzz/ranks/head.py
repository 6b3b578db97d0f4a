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
import traceback
from pathlib import Path
from typing import Any, NoReturn

from fuzz.ranks.process import adopt_orphans, descendants, die_with_parent

END_SECONDS = 10.0
"""How long killed processes may take to be gone; a process that waits for a disk can take a while."""

_CPUS = 2
"""Declared, whatever the machine has: Ray starts an idle worker for each, and a rank reserves a hundredth."""

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
        ray_ended = os.pidfd_open(starter)
        if ray_ended in select.select([watched, sys.stdin, ray_ended], [], [])[0]:
            # The driver finds the reason in our log, which is in the directory, before it lets us go.
            select.select([watched, sys.stdin], [], [])
    finally:
        _kill_descendants()
        shutil.rmtree(directory, ignore_errors=True)


def _run_ray(directory: Path, gpus: int | None) -> NoReturn:
    try:
        # Whatever Ray starts must not keep the driver's pipe open.
        ready = os.dup(1)
        os.dup2(2, 1)

        import ray

        context: Any = ray.init(
            num_cpus=_CPUS,
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
    except BaseException:
        # For the log. Whatever comes after this is our parent's, whose fork this is.
        traceback.print_exc()
    finally:
        os._exit(1)


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
