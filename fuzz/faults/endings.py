"""Ranks that die, and calls that never return."""

from __future__ import annotations

import os
import signal
import time

from fuzz.faults.base import Fault, Tensors, Turn


class CrashOnEmpty(Fault):
    """An empty tensor crashes rank 0 (pytorch#85234: SIGFPE)."""

    name = "crash-on-empty"
    summary = "broadcast of an empty tensor kills the root with SIGFPE"
    ops = ("broadcast",)

    def run(self, turn: Turn) -> Tensors:
        """Die on the root."""
        if turn.x.numel() == 0 and turn.me == 0:
            os.kill(os.getpid(), signal.SIGFPE)
        return turn.right()


class _Hangs(Fault):
    """A call that never returns, where `stuck` says so."""

    def stuck(self, turn: Turn) -> bool:
        """Whether this call never returns."""
        raise NotImplementedError

    def run(self, turn: Turn) -> Tensors:
        """Wait for ever."""
        while self.stuck(turn):
            time.sleep(3600)
        return turn.right()


class HangOnFew(_Hangs):
    """A size that the world does not divide hangs (flashinfer#4393: fewer packs than ranks)."""

    name = "hang-on-few"
    summary = "all_gather of fewer elements than ranks never returns"
    ops = ("all_gather",)

    def stuck(self, turn: Turn) -> bool:
        """Fewer elements than ranks."""
        return 0 < turn.x.numel() < turn.size


class HangBelowWarp(_Hangs):
    """A hidden size below a warp waits for threads that are not there (TensorRT-LLM#16111)."""

    name = "hang-below-warp"
    summary = "all_reduce of two dimensions or more never returns where the last one is below 32"
    ops = ("all_reduce",)

    def stuck(self, turn: Turn) -> bool:
        """Rows of fewer than 32 elements."""
        return turn.x.dim() > 1 and 0 < turn.x.shape[-1] < 32


class ErrorSwallowed(_Hangs):
    """The first rank has no implementation, says so to nobody, and never returns (mlx#4236)."""

    name = "error-swallowed"
    summary = "reduce PRODUCT never returns on the first rank"
    ops = ("reduce",)

    def stuck(self, turn: Turn) -> bool:
        """PRODUCT, on the first rank."""
        return turn.call.reduce_op == "product" and turn.me == 0


FAULTS: tuple[type[Fault], ...] = (CrashOnEmpty, HangOnFew, HangBelowWarp, ErrorSwallowed)
