"""The recipes of `templates/`, built as somebody types it and tried in a sandbox: long, because their packages are fetched for real."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import pytest

from space.testing import machine
from space.testing.machine import Runtime

RECIPES = Path(__file__).parents[2] / "templates"
FETCHES = """
const http = require('node:http');
const server = http.createServer((_, answer) => answer.end(JSON.stringify({from: 'node'})));
server.listen(0, '127.0.0.1', async () => {
    const answer = await fetch(`http://127.0.0.1:${server.address().port}/`);
    console.log((await answer.json()).from, process.version.split('.')[0]);
    server.close();
});
"""
DRAWS = """
import io, numpy, pandas, matplotlib
matplotlib.use("agg")
from matplotlib import pyplot
frame = pandas.DataFrame({"x": numpy.arange(5), "y": numpy.arange(5) ** 2})
pyplot.plot(frame.x, frame.y)
pyplot.savefig(drawn := io.BytesIO(), format="png")
print(int(frame.y.sum()), drawn.getvalue()[1:4].decode())
"""


PACKAGED = """
version = 1
name = "packaged"
[base]
template = "base"
[[download]]
deb = "jq"
[[step]]
run = 'sh "$SPACE_DOWNLOADS/deb/install" jq'
"""


@pytest.mark.full
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("name", "command", "says"),
    [
        ("packaged", ("jq", "-n", "40 + 2"), "42\n"),
        ("node", ("node", "-e", FETCHES), "node v22\n"),
        ("python-data", ("python3", "-c", DRAWS), "30 PNG\n"),
    ],
)
def test_recipe_whose_packages_are_fetched_becomes_a_template_that_works(
    runtime: Runtime, tmp_path: Path, name: str, command: tuple[str, ...], says: str
) -> None:
    with machine.private(runtime) as served:
        environment = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "SPACE_API_URL": served.url, "SPACE_API_KEY": served.api_key}

        def space(*words: str) -> str:
            began = time.monotonic()
            done = subprocess.run(runtime.space(*words), env=environment, capture_output=True, text=True, check=False, timeout=800)
            assert done.returncode == 0, done.stderr + done.stdout
            print(f"{' '.join(words)[:80]}: {time.monotonic() - began:.1f} s")
            return done.stdout

        recipe = RECIPES / f"{name}.toml"
        if not recipe.is_file():
            (recipe := tmp_path / "recipe.toml").write_text(PACKAGED)
        print(space("template", "build", str(recipe)))
        assert space("run", "--template", name, "--", *command) == says
        if name == "node":
            assert space("run", "--template", name, "--", "sh", "-c", "npm --version && npx --version").count("\n") == 2
