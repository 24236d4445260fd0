"""The how-tos' Python against real guests prints what the pages say."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from space.serve.private import Served

HOWTO = Path(__file__).parents[2] / "docs/howto"
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PAGES = [path for path in sorted(HOWTO.glob("*.md")) if "```python" in path.read_text()]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_prints_what_it_says(
    page: Path, served: Served, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SPACE_API_URL", served.url)
    monkeypatch.setenv("SPACE_API_KEY", served.api_key)
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "howto"}
    found = _BLOCK.findall(page.read_text())
    for language, text in found:
        if language == "python":
            exec(compile(text, page.name, "exec"), names)
    assert capsys.readouterr().out == "".join(text for language, text in found if language == "text")
