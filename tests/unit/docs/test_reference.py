"""The reference pages say what the program does: they are written by a tool from the things themselves."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

from space.control.routes import ROUTES
from space.model.errors import BY_CODE

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("reference_tool", ROOT / "tools/reference.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def pages(tool: ModuleType) -> dict[str, str]:
    return dict(tool.pages())


def test_the_committed_pages_are_what_the_tool_writes(pages: dict[str, str]) -> None:
    stale = [name for name, text in pages.items() if (ROOT / "docs/reference" / name).read_text() != text]
    assert not stale, "run tools/reference.py"


def test_check_names_the_stale_page_and_writes_nothing(
    tool: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tool, "TARGET", tmp_path)
    assert tool.main([]) == 0
    assert tool.main(["--check"]) == 0
    (tmp_path / "errors.md").write_text("old")
    assert tool.main(["--check"]) == 1
    assert "errors.md is stale" in capsys.readouterr().err
    assert (tmp_path / "errors.md").read_text() == "old"
    assert tool.main(["--chek"]) == 2


def test_every_route_code_and_command_has_its_place(pages: dict[str, str]) -> None:
    assert all(f"\n## {route.method} {route.path}\n" in pages["api.md"] for route in ROUTES)
    assert all(f"| `{code}` |" in pages["errors.md"] for code in BY_CODE)
    assert {"## space run", "## space key create", "## space config server"} <= set(pages["cli.md"].splitlines())


def test_every_link_of_the_api_page_leads_to_a_heading(pages: dict[str, str]) -> None:
    text = pages["api.md"]
    titles = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    anchors = {re.sub(r"[^\w-]", "", title.lower().replace(" ", "-")) for title in titles}
    assert set(re.findall(r"\]\(#([^)]*)\)", text)) <= anchors


def test_every_setting_says_what_it_is_for(tool: ModuleType) -> None:
    rows = [line for line in tool.settings().splitlines() if line.startswith("| `")]
    assert rows
    assert not [row for row in rows if row.split("|")[-2].strip() in ("", "-")]


def test_a_comment_stands_for_the_fields_below_it(tool: ModuleType) -> None:
    source = 'class S:\n    """."""\n\n    # One,\n    # and two.\n    a: int = 1\n    b: int = 2\n    # Three.\n    c: int = 3\n'
    assert tool.field_comments(source, "S") == {"a": "One, and two.", "b": "One, and two.", "c": "Three."}
