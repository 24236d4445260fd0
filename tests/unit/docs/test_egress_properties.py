"""The table of the egress wall's properties: every one has its tests, some of them in real guests, and they exist."""

from __future__ import annotations

import re

import pytest
from tests.unit.docs import tables
from tests.unit.docs.tables import ROOT, rows, tiers

PAGE = ROOT / "docs/egress-properties.md"
IN_GUESTS = ("tests/security/", "tests/machine/")


@pytest.mark.parametrize("row", rows(PAGE))
def test_a_property_names_a_test_that_exists_in_its_tier(row: str) -> None:
    tables.check(row)


def test_each_of_the_twelve_has_tests_and_one_in_a_real_guest() -> None:
    sections = re.split(r"^## ", PAGE.read_text(), flags=re.MULTILINE)[1:]
    assert [section.split(".")[0] for section in sections[:12]] == [str(number) for number in range(1, 13)]
    for section in sections[:12]:
        assert any(f"`{place}" in section for place in IN_GUESTS), section.splitlines()[0]


def test_every_test_of_the_wall_in_guests_is_in_the_table() -> None:
    page = PAGE.read_text()
    for path in sorted((ROOT / "tests/security").glob("test_*.py")):
        for name in tiers(path):
            assert not name.startswith("test_") or f"{path.relative_to(ROOT)}::{name}`" in page, f"{path.name}::{name}"
