"""Every technique is whole: one small file that says what it tries, which claim and defences it tests, and what must be seen."""

from __future__ import annotations

import ast
import json
import re
import sys
from pathlib import Path

import pytest
from tests.mutations.table import MUTATIONS

from space_evaluate import catalogue
from space_evaluate.catalogue import Entry

ROOT = Path(__file__).resolve().parents[3]
CLAIMS = set(re.findall(r"^\| ([A-Z]\d+) \|", (ROOT / "docs/threat-model.md").read_text(), re.MULTILINE))
DEFENCES = {one.defence for one in MUTATIONS}
MOST_LINES = 110
SHIPPED = ("space_evaluate", "space_evaluate.inside", "space_evaluate.technique")
GOALS, POLICIES = ("callback", "host-secret"), ("narrow", "blocked")


def source(entry: Entry) -> Path:
    return ROOT / "src" / f"{entry.module.replace('.', '/')}.py"


@pytest.mark.parametrize("entry", catalogue.entries(), ids=lambda entry: entry.id)
def test_a_technique_says_what_it_is(entry: Entry) -> None:
    told = entry.technique
    assert told.tries[0].isupper()
    assert told.tries.endswith(".")
    assert told.claim in CLAIMS
    assert told.stopped_by
    assert told.goals
    assert told.policies
    assert told.variants
    assert told.defences
    assert set(told.defences) <= DEFENCES or told.blank, set(told.defences) - DEFENCES
    assert len(source(entry).read_text().splitlines()) <= MOST_LINES


@pytest.mark.parametrize("entry", catalogue.entries(), ids=lambda entry: entry.id)
def test_what_runs_in_a_guest_needs_the_standard_library_alone(entry: Entry) -> None:
    for node in ast.parse(source(entry).read_text()).body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [one.name for one in node.names] if isinstance(node, ast.Import) else [node.module or ""]
            assert all(name in SHIPPED or name.split(".")[0] in sys.stdlib_module_names for name in names), names


def test_what_a_guest_gets_is_whole() -> None:
    found = catalogue.files()
    assert "space_evaluate/guestside.py" in found
    assert {f"{entry.module.replace('.', '/')}.py" for entry in catalogue.entries()} <= set(found)


def test_both_goals_and_both_policies_are_tried() -> None:
    found = catalogue.attempts(catalogue.entries())
    assert {(one.goal, one.policy) for one in found} == {(goal, policy) for goal in GOALS for policy in POLICIES}


def test_the_battery_is_as_large_as_it_is_said_to_be() -> None:
    found = catalogue.entries()
    assert len(found) >= 150
    assert len(catalogue.attempts(found)) >= 300
    assert len(catalogue.attempts(found, quick=True)) >= 60


def test_attempts_have_names_of_their_own() -> None:
    names = [one.name for one in catalogue.attempts(catalogue.entries())]
    assert len(set(names)) == len(names)


def test_the_table_of_mutations_has_no_blank_without_a_reason() -> None:
    """Each defence that techniques name and that can be weakened was: somebody noticed, or it is written why nobody could."""
    table = json.loads((ROOT / "src/space_evaluate/mutations.json").read_text())
    named = {defence for entry in catalogue.entries() for defence in entry.technique.defences}
    assert table["defences"].keys() == named & {one.defence for one in MUTATIONS}
    known = {entry.id for entry in catalogue.entries()}
    noticed = {name for row in table["defences"].values() for name in row["noticed"]}
    assert noticed <= known
    assert [defence for defence, row in table["defences"].items() if not row["noticed"] and not row.get("reason")] == []
    assert sum(bool(row["noticed"]) for row in table["defences"].values()) >= 12
    assert not any(row.get("fault") for row in table["defences"].values())
