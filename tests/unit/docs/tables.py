"""Pages whose rows name the test that holds each: rows, and the tests of a file."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[3]
_ROW = re.compile(r"^\| (?P<promise>[^|]+) \| `(?P<path>tests/[\w/]+\.py)::(?P<name>test_\w+)` \| (?P<tier>every|full) \|$")


def rows(page: Path) -> list[str]:
    """Of the tables of a page, without their heads."""
    return [line for line in page.read_text().splitlines() if line.startswith("|") and not re.match(r"\|( promise| property|-)", line)]


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


def check(row: str) -> None:
    """Its test exists, in the tier that it says."""
    found = _ROW.match(row)
    assert found is not None, f"not a row of promise, test and tier: {row}"
    path = ROOT / found["path"]
    assert path.exists(), found["path"]
    assert tiers(path).get(found["name"]) == found["tier"], f"{found['path']}::{found['name']} is {tiers(path).get(found['name'])}"
