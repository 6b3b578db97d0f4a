"""The console: a live line on a terminal, plain lines elsewhere. It only listens to events."""

from __future__ import annotations

import time

from rich.console import Console as RichConsole
from rich.live import Live
from rich.text import Text

from fuzz import events
from fuzz.finding import Standing

PLAIN_EVERY = 10.0
"""Seconds between two progress lines where there is no terminal."""

FOLDS_SHOWN = 6
"""Orders of additions that the summary names, the most common first; `folds.json` has them all."""

_HEADS = {
    Standing.BUG: "FOUND",
    Standing.BREACH: "FOUND",
    Standing.ILLEGAL: "NOTED illegal program:",
    Standing.DIVERGENCE: "NOTED divergence:",
}


class Console:
    """Tells a person how a campaign goes. `quiet` keeps only findings and the summary."""

    def __init__(self, console: RichConsole | None = None) -> None:
        self._console = console or RichConsole(highlight=False, soft_wrap=True)
        self._live: Live | None = None
        self._cases = 0
        self._found = 0
        self._phase = "generate"
        self._started = time.perf_counter()
        self._told = self._started

    def listen(self, event: events.Event) -> None:
        """Show one event."""
        match event:
            case events.Started():
                self._start(event)
            case events.CaseRun():
                self._case(event)
            case events.Suspected():
                self._print(f"  {event.op}: {event.kind}; shrinking (case {event.digest})")
            case events.Found():
                self._found += event.finding.bug
                self._finding(event)
            case events.Incident():
                self._print(f"  incident: {event.text}")
            case events.Seen():
                pass
            case events.Finished():
                self._finish(event)

    def _print(self, text: str) -> None:
        (self._live.console if self._live else self._console).print(Text(text))

    def _start(self, event: events.Started) -> None:
        worlds = ", ".join(map(str, event.worlds))
        self._print(f"cclfuzz: {event.backend}, worlds of {worlds} ranks, seed {event.seed}, {event.budget}")
        self._print(f"  run folder: {event.folder}")
        self._print("  starting Ray and the ranks takes some seconds")
        if self._console.is_terminal:
            self._live = Live(Text(""), console=self._console, refresh_per_second=4, transient=True)
            self._live.start()

    def _case(self, event: events.CaseRun) -> None:
        self._cases += 1
        self._phase = event.phase
        now = time.perf_counter()
        if self._live is not None:
            self._live.update(Text(self._progress(now)))
        elif now - self._told >= PLAIN_EVERY:
            self._told = now
            self._print(self._progress(now))

    def _progress(self, now: float) -> str:
        seconds = max(now - self._started, 1e-9)
        return (
            f"  {self._cases} cases in {seconds:.0f} s, {self._cases / seconds:.0f} cases/s, "
            f"{self._found} finding{'s' * (self._found != 1)}, {self._phase}"
        )

    def _finding(self, event: events.Found) -> None:
        finding = event.finding
        self._print(f"{_HEADS[finding.standing]} {finding.title}")
        self._print(f"  {finding.primary['message']}")
        if finding.agrees:
            self._print(f"  {finding.agrees}")
        if finding.runs:
            self._print(f"  {finding.rate}")
        self._print(f"  repro: {event.folder}/repro.py")

    def _finish(self, event: events.Finished) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None
        per_second = event.cases / max(event.seconds, 1e-9)
        verb = "interrupted after" if event.interrupted else "ran"
        self._print(
            f"{verb} {event.cases} cases, {event.drawn} of them drawn afresh, in {event.seconds:.1f} s "
            f"({per_second:.0f} cases/s, drawing {event.draw_seconds:.1f} s): "
            f"{event.findings} finding{'s' * (event.findings != 1)}, {event.noted} noted"
        )
        power = "" if event.power is None else f" (detection power {event.power:.2f})"
        self._print(
            f"  refused {event.refused}, unspecified {event.unspecified}, by bound only {event.bound_only}{power}, "
            f"incidents {event.incidents}, worlds rebuilt {event.rebuilds}"
        )
        if event.against is not None:
            self._print(
                f"  against {event.against}: {event.compared} cases compared, {event.not_comparable} not comparable, "
                f"{event.both_legal_different} both legal and different"
            )
        if event.folds:
            self._print("  orders of additions seen: " + "; ".join(text for text, _ in event.folds[:FOLDS_SHOWN]))
