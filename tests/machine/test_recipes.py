"""The recipes of `templates/`, built as somebody types it and tried in a sandbox: long, because their packages are fetched for real."""

from __future__ import annotations

import shutil
import subprocess
import time
from pathlib import Path

import pytest

from space.sdk import Client, Sandbox
from space.serve.private import Served
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


MODULES = "asyncio email.message http.client unittest.mock xml.dom.minidom"
WARM = f"""
version = 1
name = "warmed"
user = "user"
start = "exec python3 /usr/local/lib/warm_server.py /var/lib/warm-python/socket {MODULES}"
[base]
template = "base"
[[step]]
copy = "warm_server.py"
to = "/usr/local/lib/warm_server.py"
[[step]]
copy = "warm-python"
to = "/usr/local/bin/warm-python"
[[step]]
run = "chmod 755 /usr/local/bin/warm-python && install -d -o user -g user -m 700 /var/lib/warm-python"
[ready]
run = "warm-python --ready"
"""


def _warm(client: Client, template: str, modules: str, drawn: str) -> None:
    """Two clones whose interpreters were copied with their memory: they draw other numbers, and wait for no import."""
    numbers: list[str] = []
    for _ in range(2):
        with Sandbox.create(template, client=client) as sandbox:
            assert sandbox.info().start == "warm"
            for _ in range(2):
                numbers += sandbox.run(["warm-python", "-c", drawn], check=True).text.split()
            names = modules.split()
            missing: dict[str, list[str]] = {}
            for python in ("python3", "warm-python"):
                look = f"import sys; print(*[name for name in {names} if name not in sys.modules])"
                missing[python] = sandbox.run([python, "-c", look], check=True).text.split()
            assert missing == {"python3": names, "warm-python": []}
            sandbox.run(["warm-python", "-c", f"import {', '.join(names)}"], check=True)
            killed = sandbox.run(["warm-python", "-c", "import os; print(os.getcwd(), flush=True); os.kill(os.getpid(), 9)"])
            assert (killed.stdout, killed.signal) == (b"/home/user\n", 9)
            assert sandbox.run(["warm-python", "-c", "import os; print(os.getuid())"], user="root", check=True).text == "0\n", "a fresh one"
    assert len(set(numbers)) == len(numbers) >= 4, numbers


@pytest.mark.timeout(200)
def test_an_interpreter_that_was_kept_warm_draws_other_numbers_in_each_clone_and_imports_nothing(runtime: Runtime, tmp_path: Path) -> None:
    (tmp_path / "recipe.toml").write_text(WARM)
    shutil.copytree(RECIPES / "python-data", tmp_path, dirs_exist_ok=True)
    with machine.private(runtime, warm_templates="1", clones_ahead="0") as served, _client(served) as client:
        for line in client.build_template(tmp_path / "recipe.toml"):
            print(line)
        _warm(client, "warmed", MODULES, "import random; print(random.random())")


@pytest.mark.full
@pytest.mark.timeout(900)
def test_numpy_draws_other_numbers_in_each_clone_of_python_data_and_is_there_at_once(runtime: Runtime) -> None:
    with machine.private(runtime, warm_templates="1", clones_ahead="0") as served, _client(served) as client:
        environment = {"PATH": "/usr/bin:/bin", "HOME": "/root", "SPACE_API_URL": served.url, "SPACE_API_KEY": served.api_key}
        words = runtime.space("template", "build", str(RECIPES / "python-data.toml"))
        done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False, timeout=800)
        assert done.returncode == 0, done.stderr + done.stdout
        _warm(
            client, "python-data", "numpy pandas matplotlib.pyplot", "import numpy, random; print(numpy.random.random(), random.random())"
        )


def _client(served: Served) -> Client:
    return Client(api_url=served.url, api_key=served.api_key)
