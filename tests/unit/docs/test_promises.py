"""The table of promises: every test that it names exists, in the tier that it says."""

from __future__ import annotations

import re

import pytest
from tests.unit.docs import tables
from tests.unit.docs.tables import ROOT, rows, tiers

PAGE = ROOT / "docs/promises.md"
SECTIONS = (
    "Nothing leaks",
    "Lives",
    "Exec, output, files",
    "Timeouts and pressure",
    "Egress",
    "Credentials",
    "Operation",
    "Templates",
    "Code interpreter",
    "Ports",
    "Not kept",
)


@pytest.mark.parametrize("row", rows(PAGE))
def test_a_promise_names_a_test_that_exists_in_its_tier(row: str) -> None:
    tables.check(row)


def test_every_section_has_promises_and_none_comes_twice() -> None:
    assert re.findall(r"^## (.+)$", PAGE.read_text(), re.MULTILINE) == list(SECTIONS)
    assert len(rows(PAGE)) == len(set(rows(PAGE))) > 50


def test_every_promise_of_its_own_file_is_in_the_table() -> None:
    """A test that was written for a promise names one."""
    page = PAGE.read_text()
    for path in sorted((ROOT / "tests/machine").glob("test_promises_*.py")):
        for name in tiers(path):
            assert not name.startswith("test_") or f"{path.relative_to(ROOT)}::{name}`" in page, f"{path.name}::{name}"
