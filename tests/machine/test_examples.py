"""The programs of `examples/` on real guests: what they write is what they write with the mock server."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from space.serve.private import Served

EXAMPLES = Path(__file__).parents[2] / "examples"
WRITTEN: dict[str, list[str]] = json.loads((EXAMPLES / "written.json").read_text())


@pytest.mark.parametrize("name", WRITTEN)
def test_an_example_writes_what_it_should(served: Served, name: str) -> None:
    env = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(EXAMPLES.parent / "src"), "PYTHONIOENCODING": "utf-8"}
    env |= {"SPACE_API_URL": served.url, "SPACE_API_KEY": served.api_key}
    done = subprocess.run([sys.executable, EXAMPLES / name], env=env, capture_output=True, text=True, timeout=200, check=False)
    assert (done.stdout.splitlines(), done.returncode) == (WRITTEN[name], 0), done.stderr
