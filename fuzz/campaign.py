"""Draws cases and runs them until the budget is spent; each distinct bug is shrunk, examined and told once.

Hypothesis stops soon after its first failure, so it runs in rounds with derived seeds. Within a round, a case whose
every failure is explained by a bug that was found before passes; so each round looks for something new. Each symptom
raises an exception type of its own, since Hypothesis tells bugs apart by type and line.
"""

from __future__ import annotations

import time
import unittest
from collections import Counter
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import hypothesis
from hypothesis import HealthCheck, Phase, Verbosity
from hypothesis.database import DirectoryBasedExampleDatabase

from corpus.case import Case
from corpus.codec import digest
from corpus.payload import key as hash_key
from fuzz import events
from fuzz.against import Translation, compare, translate
from fuzz.finding import Finding, Standing, name_of, place, standing
from fuzz.flaky import repeats
from fuzz.runner import DEADLINE, NotRun, Outcome, Runner
from fuzz.variations import Reach, plainer, variations
from oracles.failure import Failure, Verdict
from oracles.judge import Judgement
from oracles.observation import Status
from strategies.cases import cases
from strategies.space import Space

ROUND = 200
"""Examples a round: long enough to spread over Hypothesis's fixed cost, short enough to look at the clock."""

REUSE_ROUNDS = 20
"""Bugs of earlier runs that are looked for before anything is drawn."""

RERUNS = 3
"""How often a case is run again, when it fails first and when it is minimal, to say whether it always fails."""

ESTIMATE_RUNS, ESTIMATE_SECONDS = 12, 10.0
"""How often, and for how long, one that does not is run again to guess how often its candidates must be run."""

FLAKY_RUNS, FLAKY_SECONDS = 30, 20.0
"""How often, and for how long, a minimal case that does not always fail is run again to tell its rate."""

SHRINK_SECONDS = 60.0
"""Time to shrink one bug; then the smallest case so far is kept."""

EXAMINE_SECONDS = 20.0
"""Time to try the neighbours of a minimal case; those that are left over are not spoken of."""

HANG_DEADLINE = 2.0
"""Seconds given to a small case once a hang is known: a hundred times what it takes when it does not hang."""

LOST_IN_A_ROW = 5
"""Cases lost to our own side (a supervisor, a node) after which there is no point in going on."""

FROM_OUTSIDE = ("SIGKILL", "SIGTERM", "SIGHUP", "SIGINT", "SIGSTOP")
"""Signals that a person or the out-of-memory killer sends, and no bug raises in its own process."""


@dataclass(frozen=True, slots=True)
class Budget:
    """When to stop: after `examples` drawn cases, or after `seconds`; the first that is reached."""

    examples: int | None = None
    seconds: float | None = None

    def describe(self) -> str:
        """The budget in words."""
        parts = [] if self.examples is None else [f"{self.examples} examples"]
        parts += [] if self.seconds is None else [f"{self.seconds:g} s"]
        return " or ".join(parts) or "no limit"


class Found(Exception):
    """A case failed in a way that no earlier finding explains; one subclass for each symptom."""


class Symptom(NamedTuple):
    """What the failures of one bug share, whatever the size."""

    backend: str
    op: str
    kind: str
    standing: Standing


def symptom_of(outcome: Outcome, failure: Failure) -> Symptom:
    """The symptom of one failure of a run."""
    return Symptom(outcome.case.backend, failure.op, failure.kind, standing(failure))


@cache
def _found(symptom: Symptom) -> type[Found]:
    return type("Found_" + "_".join(symptom).replace(" ", "_"), (Found,), {})


class _OutOfTimeError(BaseException):
    """Leaves Hypothesis at once: it does not catch what is not an Exception."""


@dataclass
class _Round:
    """What one round of Hypothesis came to."""

    drawn: int = 0
    target: Symptom | None = None
    smallest: tuple[Outcome, list[Failure]] | None = None
    kinds: set[str] = field(default_factory=set)
    give_up: float | None = None
    repeats: int = 1
    """Runs after which a case that is as flaky as the one being shrunk would have failed."""


class InternalError(BaseException):
    """We failed, not the library under test. Not an Exception, or Hypothesis would shrink it."""


class Store(Protocol):
    """Where findings are put, so that whatever ends a campaign loses none."""

    def suspect(self, finding: Finding) -> None:
        """Keep a case that failed, before anything else is done with it."""

    def keep(self, finding: Finding) -> str:
        """Keep a distinct bug in place of what was suspected; return its folder."""

    def discard(self) -> None:
        """Drop what was suspected: it came to nothing new."""


class Campaign:
    """One run of the fuzzer over one space.

    `database` is where Hypothesis keeps failing examples between runs (None: nowhere). `listener` is told every event.
    `store` keeps what is found. `against` names a second backend that runs the same programs, where it can.
    """

    def __init__(
        self,
        runner: Runner,
        space: Space,
        *,
        budget: Budget,
        seed: int,
        database: Path | None,
        listener: events.Listener,
        store: Store,
        against: str | None = None,
    ) -> None:
        self._runner = runner
        self._space = space
        self._budget = budget
        self._seed = seed
        self._database = None if database is None else DirectoryBasedExampleDatabase(database)
        self._tell = listener
        self._store = store
        self._against = against
        self._strategy = cases(space)
        self._started = time.perf_counter()
        self._last = self._started
        self.findings: list[Finding] = []
        self._counts = {
            "cases": 0,
            "drawn": 0,
            "lost": 0,
            "refused": 0,
            "unspecified": 0,
            "bound_only": 0,
            "incidents": 0,
            "compared": 0,
            "not_comparable": 0,
            "both_legal_different": 0,
        }
        self._folds: Counter[str] = Counter()
        # The detection power of each verdict by bound, summed, and how many there are.
        self._power, self._powers = 0.0, 0
        self._draw_seconds = 0.0
        self._lost = 0
        self._hang = False

    def run(self, folder: str = "") -> events.Finished:
        """Fuzz until the budget is spent or a person interrupts; return the last event.

        What was found by then is kept, whatever ends the run.

        Raises:
            InternalError: we failed; the cause says how.
        """
        space = self._space
        self._tell(events.Started(space.backend, space.worlds, self._seed, self._budget.describe(), folder))
        interrupted = False
        try:
            self._rounds()
        except KeyboardInterrupt:
            interrupted = True
        finished = events.Finished(
            findings=sum(one.bug for one in self.findings),
            noted=sum(not one.bug for one in self.findings),
            power=self._power / self._powers if self._powers else None,
            folds=tuple(self._folds.most_common()),
            against=self._against,
            rebuilds=self._runner.rebuilds,
            seconds=time.perf_counter() - self._started,
            draw_seconds=self._draw_seconds,
            interrupted=interrupted,
            **self._counts,
        )
        self._tell(finished)
        return finished

    def _rounds(self) -> None:
        if self._database is not None:
            for _ in range(REUSE_ROUNDS):
                if self._late(0.5) or self._round((Phase.reuse, Phase.shrink), ROUND, None).target is None:
                    break
        drawn, number = 0, 0
        while not self._late() and (self._budget.examples is None or drawn < self._budget.examples):
            left = ROUND if self._budget.examples is None else min(ROUND, self._budget.examples - drawn)
            seed = hash_key("round", self._seed, number)
            number += 1
            before = self._counts["cases"]
            result = self._round((Phase.generate, Phase.shrink), left, seed)
            drawn += result.drawn
            if self._counts["cases"] == before:
                break  # the space has no more than what was drawn already

    def _late(self, share: float = 1.0) -> bool:
        """Whether this share of the time is spent."""
        limit = self._budget.seconds
        return limit is not None and time.perf_counter() - self._started >= share * limit

    def _round(self, phases: tuple[Phase, ...], examples: int, seed: int | None) -> _Round:
        """Run one round of Hypothesis; record the bug that it found, if any."""
        state = _Round()
        phase = "reuse" if Phase.reuse in phases else "generate"

        def test(case: Case) -> None:
            self._one(case, state, phase)

        decorated: Any = hypothesis.given(self._strategy)(test)
        if seed is not None:
            decorated = hypothesis.seed(seed)(decorated)
        decorated = hypothesis.settings(
            max_examples=examples,
            phases=phases,
            database=self._database,
            deadline=None,
            report_multiple_bugs=False,
            suppress_health_check=list(HealthCheck),
            verbosity=Verbosity.quiet,
            print_blob=False,
        )(decorated)
        try:
            self._last = time.perf_counter()
            decorated()
        except Found:
            pass
        except _OutOfTimeError:
            pass
        except unittest.SkipTest:
            pass  # nothing to reuse
        except hypothesis.errors.Flaky:
            pass  # the case that failed is kept; `_examine` says how often it fails
        except KeyboardInterrupt:
            if state.smallest is not None:
                self._keep(*state.smallest, state.kinds, shrunk=False)
            raise
        if state.smallest is not None:
            self._examine(*state.smallest, state.kinds, state.repeats)
        self._hang = False
        return state

    def _one(self, case: Case, state: _Round, phase: str) -> None:
        """Run one drawn case; raise Found where it shows something new."""
        drawing = time.perf_counter() - self._last
        try:
            now = time.perf_counter()
            if state.target is None:
                if self._late():
                    raise _OutOfTimeError
                state.drawn += 1
                self._counts["drawn"] += phase == "generate"
            elif state.give_up is not None and now > state.give_up:
                raise _OutOfTimeError
            for run in range(state.repeats):
                outcome = self._run(case, phase if state.target is None else "shrink", 0.0 if run else drawing)
                if new := self._aimed(outcome, state.target):
                    break
            else:
                return
            symptom = symptom_of(outcome, new[0])
            state.smallest = (outcome, new)
            state.kinds |= _kinds(outcome, new, symptom)
            if state.target is None:
                state.target = symptom
                self._hang = new[0].kind == "hang"
                self._suspect(outcome, new)
                if not self._happens_again(outcome, new, state):
                    state.target, state.smallest, state.kinds, self._hang = None, None, set(), False
                    return
                state.give_up = time.perf_counter() + SHRINK_SECONDS
            raise _found(symptom)(str(new[0]))
        except Found:
            raise
        except Exception as error:  # a full disk, a defect of ours: nothing that Hypothesis should shrink
            raise InternalError(f"{type(error).__name__}: {error} (case {digest(case)})") from error
        finally:
            self._last = time.perf_counter()

    def _aimed(self, outcome: Outcome, target: Symptom | None) -> list[Failure]:
        """The new failures of a run; while something is shrunk, those of its collective where its symptom is there."""
        new = self._unexplained(outcome)
        if target is None:
            return new
        # Another bug on the way is left for a later round, or the shrinker would run after it.
        mine = sorted(
            (failure for failure in new if failure.op == target.op),
            key=lambda failure: symptom_of(outcome, failure) != target,
        )
        return mine if mine and symptom_of(outcome, mine[0]) == target else []

    def _happens_again(self, outcome: Outcome, failures: list[Failure], state: _Round) -> bool:
        """Run a case that failed for the first time again, to see whether it always fails; False: an incident."""
        symptom = symptom_of(outcome, failures[0])
        limit = time.perf_counter() + ESTIMATE_SECONDS
        again = runs = 0
        while runs < RERUNS or (again < runs < ESTIMATE_RUNS and time.perf_counter() < limit):
            again += bool(_of(symptom, self._run(outcome.case, "examine", 0.0)))
            runs += 1
            if runs == RERUNS and again == 0 and _from_outside(outcome):
                self._came_from_outside(outcome, failures)
                return False
        # It has failed once already.
        state.repeats = 1 if again == runs else repeats((again + 1) / (runs + 1))
        return True

    def _came_from_outside(self, outcome: Outcome, failures: list[Failure]) -> None:
        self._incident(f"{failures[0]} (did not happen again in {RERUNS} runs of the case)", outcome.case)
        self._store.discard()

    def _run(self, case: Case, phase: str, drawing: float) -> Outcome:
        """Run a case; where it is right and there is a second backend, on that too, and return what is wrong there."""
        outcome = self._run_alone(case, phase, drawing)
        judgement = outcome.judgement
        if self._against is None or case.backend != self._space.backend:
            return outcome
        if judgement.failures or judgement.lost:
            return outcome
        translation = None if judgement.refused else translate(case, self._runner.backend(self._against))
        second = None if translation is None else self._other(translation.case)
        if translation is None or second is None:
            self._counts["not_comparable"] += 1
            return outcome
        if second.judgement.failures:
            return second
        self._counts["compared"] += 1
        found = compare(outcome, second, translation, self._runner.contract(case), self._runner.contract(second.case))
        self._counts["both_legal_different"] += found.different
        if found.divergence is None:
            return outcome
        return replace(outcome, judgement=replace(judgement, failures=[found.divergence]))

    def _other(self, case: Case) -> Outcome | None:
        """Run a translated case; None: it gives no result to compare."""
        try:
            outcome = self._runner.run(case)
        except NotRun:
            return None
        self._count_lost(outcome.judgement, case)
        return None if outcome.judgement.lost or outcome.judgement.refused else outcome

    def _count_lost(self, judgement: Judgement, case: Case) -> None:
        self._lost = self._lost + 1 if judgement.lost else 0
        self._counts["lost"] += bool(judgement.lost)
        if judgement.lost:
            self._incident(judgement.lost, case)
        if self._lost >= LOST_IN_A_ROW:
            raise InternalError(f"{self._lost} cases in a row were lost: {judgement.lost}")

    def _run_alone(self, case: Case, phase: str, drawing: float) -> Outcome:
        hangs = any(
            one.primary["kind"] == "hang" and one.op in {call.op for call in case.program} for one in self.findings
        )
        self._runner.deadline = HANG_DEADLINE if hangs or self._hang else DEADLINE
        outcome = self._runner.run(case)
        judgement = outcome.judgement
        self._counts["cases"] += 1
        self._counts["refused"] += judgement.refused
        self._counts["unspecified"] += judgement.unspecified
        self._counts["bound_only"] += judgement.bound_only
        self._draw_seconds += drawing
        self._folds.update(dict.fromkeys(judgement.folds, 1))
        if judgement.power is not None:
            self._power += judgement.power * judgement.bound_only
            self._powers += judgement.bound_only
        self._count_lost(judgement, case)
        verdict = judgement.failures[0].kind if judgement.failures else "lost" if judgement.lost else "ok"
        if judgement.refused and not judgement.failures:
            verdict = "refused"
        op = case.program[0].op
        self._tell(events.CaseRun(digest(case), phase, verdict, op, outcome.seconds, drawing))
        return outcome

    def _incident(self, text: str, case: Case) -> None:
        self._counts["incidents"] += 1
        self._tell(events.Incident(text, digest(case)))

    def _unexplained(self, outcome: Outcome) -> list[Failure]:
        """The failures of a case that no finding explains, in the oracles' order; where there are bugs, only those.

        In a program of several calls one bug has consequences in later calls (an input that was overwritten is wrong
        for the next reader). So where a finding explains one failure, the others wait for a program of their own.
        """
        new, known = [], set()
        failures = outcome.judgement.failures
        for failure in [failure for failure in failures if failure.bug] or failures:
            explained = [
                one.key
                for one in self.findings
                if one.explains(outcome.case, failure.call, failure.kind, standing(failure))
            ]
            known |= set(explained[:1])
            if not explained:
                new.append(failure)
        for name in sorted(known):
            self._tell(events.Seen(name))
        return [] if known and len(outcome.case.program) > 1 else new

    def _suspect(self, outcome: Outcome, failures: list[Failure]) -> None:
        """Put a failing case on disk before anything else is done with it."""
        self._store.suspect(self._finding(outcome, failures, frozenset(), Reach({}, {}), 0, 0, shrunk=False))
        self._tell(events.Suspected(failures[0].op, failures[0].kind, digest(outcome.case)))

    def _examine(self, outcome: Outcome, failures: list[Failure], kinds: set[str], often: int) -> None:
        """Run the minimal case again, make it plainer, try its neighbours, and record the bug.

        `often`: runs that show it, by what is known so far.
        """
        symptom = symptom_of(outcome, failures[0])
        limit = time.perf_counter() + FLAKY_SECONDS
        again = runs = 0
        while runs < RERUNS or ((again < runs or often > 1) and runs < FLAKY_RUNS and time.perf_counter() < limit):
            rerun = self._run(outcome.case, "examine", 0.0)
            runs += 1
            if mine := _of(symptom, rerun):
                again += 1
                outcome, failures = rerun, mine
                kinds |= _kinds(rerun, rerun.judgement.failures, symptom)
            elif runs == RERUNS and again == 0 and _from_outside(outcome):
                self._came_from_outside(outcome, failures)
                return
        often = repeats(again / runs)
        original = outcome.case
        if again:
            outcome, failures = self._plainer(outcome, failures, often)
        if outcome.case != original and again < runs:
            # The rate is told of the case that is told.
            again, runs = self._rate(outcome, symptom)
        first = failures[0]
        for position, known in enumerate(self.findings):
            if known.explains(outcome.case, first.call, first.kind, symptom.standing):
                # A trait that told it apart does not matter: a value that passed before did so by chance.
                self.findings[position] = known.widened(original, first.call, frozenset(kinds))
                self._store.discard()
                self._tell(events.Seen(known.key))
                return
        reach = self._reach(outcome, first, kinds, often) if again else None
        agrees = self._vote(outcome.case, first)
        self._keep(outcome, failures, kinds, again=again, runs=runs, reach=reach, agrees=agrees)

    def _rate(self, outcome: Outcome, symptom: Symptom) -> tuple[int, int]:
        """How often a flaky case fails, and of how many runs."""
        limit = time.perf_counter() + FLAKY_SECONDS
        again = runs = 0
        while runs < RERUNS or (runs < FLAKY_RUNS and time.perf_counter() < limit):
            again += bool(_of(symptom, self._run(outcome.case, "examine", 0.0)))
            runs += 1
        return again, runs

    def _plainer(self, outcome: Outcome, failures: list[Failure], often: int) -> tuple[Outcome, list[Failure]]:
        """Drop the traits that the failure does not need.

        Hypothesis shrinks to what no known bug explains; here a case may become one that a known bug explains.
        """
        limit = time.perf_counter() + EXAMINE_SECONDS
        symptom = symptom_of(outcome, failures[0])
        contract = self._runner.contract(outcome.case)
        changed = True
        while changed:
            changed = False
            for variation in plainer(outcome.case, place(outcome.case, failures[0].call), contract):
                if often > 1 and time.perf_counter() > limit:
                    return outcome, failures
                trial = self._repeatedly(variation.case, symptom, often)
                if mine := _of(symptom, trial):
                    outcome, failures, changed = trial, mine, True
                    break
        return outcome, failures

    def _repeatedly(self, case: Case, symptom: Symptom, often: int) -> Outcome:
        """Run a case until it fails as one bug would, at most so often; return the last run."""
        for _ in range(often):
            outcome = self._run(case, "examine", 0.0)
            if _kinds(outcome, outcome.judgement.failures, symptom):
                break
        return outcome

    def _vote(self, case: Case, failure: Failure) -> str:
        """Ask the other backend about a program on which one of them is wrong by the reference."""
        if self._against is None or failure.verdict is not Verdict.WRONG:
            return ""
        mine = case.backend == self._space.backend
        other = self._against if mine else self._space.backend
        translation = translate(case, self._runner.backend(other))
        if translation is None:
            return ""
        asked = translation.case if mine else self._as_drawn(translation)
        outcome = self._other(asked)
        if outcome is None:
            return ""
        if outcome.judgement.failures:
            return f"{other} fails on this program too: {outcome.judgement.failures[0].kind}"
        return f"the reference and {other} agree on this program"

    def _as_drawn(self, translation: Translation) -> Case:
        """A case of the second backend's, run as this campaign draws it for the first."""
        return replace(translation.case, fault=self._space.fault, flags=self._space.set_flags)

    def _reach(self, outcome: Outcome, failure: Failure, kinds: set[str], often: int) -> Reach:
        symptom = symptom_of(outcome, failure)
        failed: dict[str, list[str]] = {}
        passed: dict[str, list[str]] = {}
        contract = self._runner.contract(outcome.case)
        limit = time.perf_counter() + EXAMINE_SECONDS
        for variation in variations(outcome.case, place(outcome.case, failure.call), contract, self._space.memory):
            if time.perf_counter() > limit:
                break
            trial = self._repeatedly(variation.case, symptom, often)
            mine = _kinds(trial, trial.judgement.failures, symptom)
            (failed if mine else passed).setdefault(variation.trait, []).append(variation.value)
            kinds |= mine
        return Reach(
            {trait: tuple(values) for trait, values in failed.items()},
            {trait: tuple(values) for trait, values in passed.items()},
        )

    def _finding(
        self,
        outcome: Outcome,
        failures: list[Failure],
        kinds: frozenset[str],
        reach: Reach,
        again: int,
        runs: int,
        *,
        shrunk: bool,
        agrees: str = "",
    ) -> Finding:
        # In the oracles' order, whichever of them was seen first on the way: so a bug has one name.
        symptom = symptom_of(outcome, failures[0])
        mine = sorted(
            (failure for failure in outcome.judgement.failures if failure.op == symptom.op),
            key=lambda failure: standing(failure) is not symptom.standing,
        )
        return Finding(
            key=name_of(outcome.case, mine[0]),
            case=outcome.case,
            failures=tuple(failure.to_json() for failure in mine),
            kinds=kinds | _kinds(outcome, mine, symptom),
            again=again,
            runs=runs,
            reach=reach,
            versions=next((one.versions for one in outcome.observations if one.versions), ()),
            shrunk=shrunk,
            agrees=agrees,
        )

    def _keep(
        self,
        outcome: Outcome,
        failures: list[Failure],
        kinds: set[str],
        *,
        again: int = 0,
        runs: int = 0,
        reach: Reach | None = None,
        shrunk: bool = True,
        agrees: str = "",
    ) -> None:
        """Record a bug, or note that it is one that was found before under other circumstances."""
        reach = reach or Reach({}, {})
        found = self._finding(outcome, failures, frozenset(kinds), reach, again, runs, shrunk=shrunk, agrees=agrees)
        for position, known in enumerate(self.findings):
            if known.key == found.key:
                self.findings[position] = known.widened(found.case, found.call, found.kinds)
                self._store.discard()
                self._tell(events.Seen(known.key))
                return
        self.findings.append(found)
        self._tell(events.Found(found, self._store.keep(found)))


def _of(symptom: Symptom, outcome: Outcome) -> list[Failure]:
    """The failures of a run, those of the symptom first; none where it has none."""
    failures = sorted(outcome.judgement.failures, key=lambda failure: symptom_of(outcome, failure) != symptom)
    return failures if failures and symptom_of(outcome, failures[0]) == symptom else []


def _kinds(outcome: Outcome, failures: list[Failure], symptom: Symptom) -> set[str]:
    """The kinds among these failures that may be one bug: of the symptom's backend, collective and standing."""
    return {failure.kind for failure in failures if symptom_of(outcome, failure)._replace(kind=symptom.kind) == symptom}


def _from_outside(outcome: Outcome) -> bool:
    """Whether a rank was ended or stopped by something that is not the library."""
    return any(
        one.status is Status.STOPPED or (one.status is Status.DIED and one.signal in FROM_OUTSIDE)
        for one in outcome.observations
    )
