"""The table of promises: every test that it names exists, in the tier that it says."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs/promises.md"
_ROW = re.compile(r"^\| (?P<promise>[^|]+) \| `(?P<path>tests/[\w/]+\.py)::(?P<name>test_\w+)` \| (?P<tier>every|full) \|$")
SECTIONS = ("Nothing leaks", "Exec, output, files", "Timeouts and pressure", "Egress", "Operation", "Templates", "Not kept")


def rows() -> list[str]:
    return [line for line in PAGE.read_text().splitlines() if line.startswith("|") and not re.match(r"\|( promise|-)", line)]


@cache
def tiers(path: Path) -> dict[str, str]:
    """The tests of a file, each with its tier."""
    tree = ast.parse(path.read_text())
    found = {}
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            marks = {ast.unparse(mark) for mark in node.decorator_list}
            found[node.name] = "full" if "pytest.mark.full" in marks else "every"
    return found


@pytest.mark.parametrize("row", rows())
def test_a_promise_names_a_test_that_exists_in_its_tier(row: str) -> None:
    found = _ROW.match(row)
    assert found is not None, f"not a row of promise, test and tier: {row}"
    path = ROOT / found["path"]
    assert path.exists(), found["path"]
    assert tiers(path).get(found["name"]) == found["tier"], f"{found['path']}::{found['name']} is {tiers(path).get(found['name'])}"


def test_every_section_has_promises_and_none_comes_twice() -> None:
    assert re.findall(r"^## (.+)$", PAGE.read_text(), re.MULTILINE) == list(SECTIONS)
    assert len(rows()) == len(set(rows())) > 50


def test_every_promise_of_its_own_file_is_in_the_table() -> None:
    """A test that was written for a promise names one."""
    page = PAGE.read_text()
    for path in sorted((ROOT / "tests/machine").glob("test_promises_*.py")):
        for name in tiers(path):
            assert not name.startswith("test_") or f"{path.relative_to(ROOT)}::{name}`" in page, f"{path.name}::{name}"
