"""`space template build` against a whole server, as somebody types it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from space.testing import machine
from space.testing.machine import Runtime

RECIPE = """
version = 1
name = "typed"

[base]
template = "base"

[[step]]
copy = "greeting"
to = "/etc/greeting"

[[step]]
run = "cat /etc/greeting"
"""


@pytest.mark.timeout(300)
def test_recipe_is_built_listed_booted_and_deleted(runtime: Runtime, tmp_path: Path) -> None:
    (tmp_path / "recipe.toml").write_text(RECIPE)
    (tmp_path / "greeting").write_text("hello from the recipe\n")
    with machine.private(runtime) as served:
        environment = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "SPACE_API_URL": served.url, "SPACE_API_KEY": served.api_key}

        def space(*words: str) -> str:
            done = subprocess.run(runtime.space(*words), env=environment, capture_output=True, text=True, check=False, timeout=200)
            assert done.returncode == 0, done.stderr + done.stdout
            return done.stdout

        said = space("template", "build", str(tmp_path / "recipe.toml"))
        assert "[2/2] run cat /etc/greeting: done" in said
        assert "hello from the recipe" in said
        again = space("template", "build", str(tmp_path / "recipe.toml"), "--tag", "v2")
        assert again.splitlines()[-1] == said.splitlines()[-1]
        assert "typed" in space("template", "list")
        assert space("run", "--template", "typed:v2", "--", "cat", "/etc/greeting") == "hello from the recipe\n"
        space("template", "delete", "typed:v2")
        assert "typed" in space("template", "list")
        space("template", "delete", "typed")
        assert "typed" not in space("template", "list")
        space("prune")
