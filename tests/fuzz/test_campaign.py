"""What a campaign makes of failures of different standings: bugs are found, the rest is noted."""

from __future__ import annotations

import io
import json
import re
from dataclasses import replace

import pytest
from rich.console import Console as RichConsole

from corpus.case import CaseError
from fuzz import events
from fuzz.finding import Finding, Standing, from_json, to_json
from fuzz.report.console import Console
from fuzz.report.folder import RunFolder
from fuzz.report.page import page
from fuzz.variations import Reach
from oracles.failure import IllegalFailure, RelationFailure, Verdict
from tests.fuzz.scripted import all_reduce, scripted, wrong


def divergence(kind="backends differ"):
    return RelationFailure(kind, f"all_reduce: {kind}", call=0, op="all_reduce", verdict=Verdict.DIVERGENCE)


def illegal(promise):
    return IllegalFailure("accepted", "m", call=0, op="all_reduce", verdict=Verdict.ILLEGAL, promise=promise)


def finding_of(failure, case=None):
    case = case or all_reduce()
    return Finding("k", case, (failure.to_json(),), frozenset({failure.kind}), 3, 3, Reach({}, {}))


@pytest.mark.parametrize(
    ("failure", "standing", "bug"),
    [
        (wrong(), Standing.BUG, True),
        (wrong(verdict=Verdict.DEAD), Standing.BUG, True),
        (divergence(), Standing.DIVERGENCE, False),
        (illegal(""), Standing.ILLEGAL, False),
        (illegal("documented"), Standing.BREACH, True),
    ],
)
def test_a_finding_stands_as_its_failure_does(failure, standing, bug):
    finding = finding_of(failure)
    assert (finding.standing, finding.bug) == (standing, bug)
    assert failure.bug is bug
    assert from_json(json.loads(json.dumps(to_json(finding)))) == finding


def test_a_finding_of_an_older_version_is_read():
    data = to_json(finding_of(wrong()))
    del data["standing"], data["agrees"]
    assert from_json(data) == finding_of(wrong())


@pytest.mark.parametrize("verdict", [0, 5, "1", None])
def test_a_finding_without_a_verdict_is_refused(verdict):
    data = to_json(finding_of(wrong()))
    data["failures"][0]["verdict"] = verdict
    with pytest.raises(CaseError, match="verdict"):
        from_json(data)


def test_a_divergence_is_noted_and_no_finding():
    ran = scripted(lambda case, run: [divergence()])
    assert (ran.finished.findings, ran.finished.noted) == (0, 1)
    (noted,) = ran.findings
    assert noted.key == "gloo-all_reduce-backends-differ-divergence"


def test_where_there_is_a_bug_it_is_told_and_the_divergence_is_not():
    ran = scripted(lambda case, run: [divergence(), wrong()])
    assert (ran.finished.findings, ran.finished.noted) == (1, 0)
    (finding,) = ran.findings
    assert finding.primary["kind"] == "wrong result"
    assert finding.kinds == {"wrong result"}
    assert [failure["kind"] for failure in finding.failures] == ["wrong result", "backends differ"]


def test_a_bug_does_not_explain_a_divergence_of_the_same_kind():
    def script(case, run):
        large = case.tensors[0].spec.numel > 2
        return [wrong(kind="odd")] if large else [divergence("odd")]

    ran = scripted(script)
    assert {finding.standing for finding in ran.findings} == {Standing.BUG, Standing.DIVERGENCE}
    assert len({finding.key for finding in ran.findings}) == 2
    assert (ran.finished.findings, ran.finished.noted) == (1, 1)


def test_the_power_of_bounds_is_weighed_by_their_number():
    ran = scripted(lambda case, run: [], examples=10, bound_only=4, power=0.5)
    assert (ran.finished.bound_only, ran.finished.power) == (40, 0.5)


def test_without_a_verdict_by_bound_there_is_no_power():
    assert scripted(lambda case, run: [], examples=10).finished.power is None


def test_orders_of_additions_are_counted_by_cases():
    ran = scripted(lambda case, run: [], examples=10, folds=("ring", "ring", "tree"))
    assert ran.finished.folds == (("ring", 10), ("tree", 10))


def finished(**fields):
    return events.Finished(
        cases=9,
        drawn=9,
        lost=0,
        findings=1,
        refused=0,
        unspecified=0,
        bound_only=12,
        incidents=0,
        rebuilds=0,
        seconds=1.0,
        draw_seconds=0.0,
        interrupted=False,
        **fields,
    )


def told(*heard):
    text = io.StringIO()
    console = Console(RichConsole(file=text, width=200))
    for event in heard:
        console.listen(event)
    return text.getvalue()


@pytest.mark.parametrize(
    ("failure", "head"),
    [
        (wrong(), "FOUND gloo all_reduce: wrong result"),
        (illegal("documented"), "FOUND gloo all_reduce: accepted"),
        (illegal(""), "NOTED illegal program: gloo all_reduce: accepted"),
        (divergence(), "NOTED divergence: gloo all_reduce: backends differ"),
    ],
)
def test_the_console_heads_a_finding_by_its_standing(failure, head):
    assert told(events.Found(finding_of(failure), "folder")).splitlines()[0] == head


def test_the_console_tells_the_rate_of_a_flaky_one():
    flaky = replace(finding_of(wrong()), again=9, runs=30)
    assert "  fails in 9 of 30 runs (30 %, 95 % interval 15 % to 49 %)\n" in told(events.Found(flaky, "folder"))


def test_the_summary():
    folds = tuple((f"order {place}", 9 - place) for place in range(8))
    text = told(
        finished(
            noted=2, power=0.874, folds=folds, against="other", compared=5, not_comparable=3, both_legal_different=1
        )
    )
    assert "1 finding, 2 noted\n" in text
    assert "by bound only 12 (detection power 0.87)," in text
    assert "against other: 5 cases compared, 3 not comparable, 1 both legal and different\n" in text
    assert "orders of additions seen: order 0; order 1; order 2; order 3; order 4; order 5\n" in text


def test_the_summary_does_not_speak_of_what_there_is_not():
    text = told(finished())
    assert not re.search("against|orders|power", text)


@pytest.mark.parametrize("failure", [wrong(), divergence(), illegal("")])
def test_the_page_says_what_is_only_noted(failure):
    assert ("not called a bug" in page(finding_of(failure), "")) is not failure.bug


def test_the_run_folder_keeps_standings_and_orders(tmp_path):
    folder = RunFolder(tmp_path)
    folder.record(events.Found(finding_of(divergence()), "folder"))
    folder.record(finished(noted=1, folds=(("ring", 3),)))
    folder.close()
    lines = [json.loads(line) for line in (folder.path / "events.jsonl").read_text().splitlines()]
    assert lines[0]["standing"] == "divergence"
    assert (lines[1]["noted"], lines[1]["folds"]) == (1, [["ring", 3]])
    assert json.loads((folder.path / "folds.json").read_text()) == {"ring": 3}
