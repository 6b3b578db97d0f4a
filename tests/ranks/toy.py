"""An executor for tests. A case is JSON, `{"<rank>": [command, ...]}`; all ranks end with an all_reduce."""

from __future__ import annotations

import ctypes
import json
import os
import sys
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from oracles.observation import Observation, Status


class Toy:
    """Runs a rank's commands, each as one call, and then adds up a tensor over the world."""

    def __init__(
        self, *, backend: str, rank: int, size: int, init_method: str, device: int | None, timeout: float
    ) -> None:
        if f"open-{rank}" in backend:
            raise RuntimeError("no such backend")
        self._rank = rank
        self._device = device
        self._init_method = init_method
        if backend != "none":
            dist.init_process_group("gloo", init_method, timedelta(seconds=timeout), world_size=size, rank=rank)

    def run(self, case_text: str, begun: Callable[[int], None]) -> Observation:
        reports: dict[str, Any] = {}
        call = -1
        try:
            for call, command in enumerate(json.loads(case_text).get(str(self._rank), [])):
                begun(call)
                reports[command] = self._do(command)
            if dist.is_initialized():
                call += 1
                begun(call)
                tensor = torch.full((4,), self._rank + 1.0)
                dist.all_reduce(tensor)
                reports["sum"] = tensor.tolist()
        except RuntimeError as error:
            return Observation(self._rank, Status.RAISED, call=call, error=str(error), error_type=type(error).__name__)
        return Observation(self._rank, Status.OK, call=call, reports=reports)

    def close(self) -> None:
        if dist.is_initialized():
            dist.destroy_process_group()

    def _do(self, command: str) -> Any:
        name, _, argument = command.partition(" ")
        match name:
            case "pid":
                return os.getpid()
            case "device":
                return self._device
            case "init":
                return self._init_method
            case "getenv":
                return os.environ.get(argument)
            case "modules":
                return sorted({module.partition(".")[0] for module in sys.modules})
            case "threads":
                return [torch.get_num_threads(), threading.active_count()]
            case "print":
                sys.stdout.write(argument + "\n")
                return None
            case "sleep":
                time.sleep(float(argument))
                return None
            case "touch":
                Path(argument).touch()
                return None
            case "hang":
                return threading.Event().wait()
            case "raise":
                raise RuntimeError(argument)
            case "defect":
                raise KeyError(argument)
            case "segfault":
                return ctypes.string_at(0)
            case "abort":
                os.abort()
            case "exit":
                os._exit(int(argument))
            case "leave":
                sys.exit(int(argument))
        raise KeyError(command)
