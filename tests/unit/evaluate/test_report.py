"""The report: nothing that a guest said is markup, nothing is fetched, a failed run says so; and what a run's words come from."""

from __future__ import annotations

import json
from pathlib import Path

from space_evaluate import catalogue, report
from space_evaluate.outcome import Outcome, Run, Word

ENTRY = catalogue.entries()[0]


def outcome(word: Word = "stopped", *, control: bool = True, evidence: str = "did: x") -> Outcome:
    return Outcome(catalogue.attempts((ENTRY,))[0], word, ("reason",), (evidence,), control, 1.0)


def test_a_run_passes_only_when_all_was_stopped_and_all_controls_worked() -> None:
    assert Run([outcome()], {}).passed
    for wrong in (outcome("reached"), outcome("error"), outcome(control=False), outcome().without_control("no answer")):
        assert not Run([outcome(), wrong], {}).passed
    assert not Run([outcome()], {}, whole=False).passed
    assert not Run([], {}).passed, "a run without attempts has shown nothing"
    assert outcome().without_control("x").word == "error"
    assert outcome("reached").without_control("x").word == "reached"


def test_the_object_has_what_programs_read() -> None:
    told = Run([outcome(), outcome("reached")], {"version": "1"}, {"SNI check": ["sni"]}).as_json()
    assert (told["techniques"], told["attempts"], told["reached"], told["controls_ok"]) == (1, 2, 1, True)
    assert told["by_group"][ENTRY.group] == {"techniques": 1, "attempts": 2, "reached": 1, "stopped": 1, "errors": 0}
    assert told["mutations"] == {"SNI check": ["sni"]}


def test_the_page_needs_nothing_else_and_nothing_of_a_guest_is_markup(tmp_path: Path) -> None:
    run = Run([outcome("reached", evidence="did: <script>alert(1)</script><img src=x>")], {"version": "<b>"})
    report.write(run, tmp_path)
    page = (tmp_path / "report.html").read_text()
    assert "<script" not in page
    assert "<img" not in page
    assert "&lt;script&gt;" in page
    assert "src=" not in page.replace("src=x&gt;", "")
    assert "http" not in page.split("<body>")[0]
    assert 'name="viewport"' in page
    assert "@media print" in page
    assert "failed" in page
    assert json.loads((tmp_path / "report.json").read_text())["outcomes"][0]["outcome"] == "reached"
