"""E2B's own SDKs, unmodified, against a running server with real guests.

Each worker has one private instance and one API key of E2B's form. `e2b` and `e2b_code_interpreter` are imported from the directory that
set-up makes of the locks beside this file, and `js` runs a program with JavaScript's. Nothing is skipped; every teardown proves that the
instance left nothing.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.e2b.stage import OTHER, SHOP, Js, Outside, Running, echo

import space
from space.setup import e2bclients
from space.testing import leaks, machine
from space.testing.egresstown import town
from space.testing.machine import Runtime

ROOT = Path(__file__).resolve().parents[2]
CLIENTS = e2bclients.Clients(e2bclients.make(ROOT)[0])
# Behind the tests' own: what both have is of one version.
sys.path.append(str(CLIENTS.site))

_PROGRAM = """
import * as e2b from 'e2b'
import * as interpreter from '@e2b/code-interpreter'
import fs from 'node:fs'
const given = JSON.parse(fs.readFileSync(0, 'utf8'))
const sleep = ms => new Promise(done => setTimeout(done, ms))
const thrown = async work => { try { await work(); return null } catch (e) { return { name: e.constructor.name, message: e.message } } }
const said = await (async ({ Sandbox, Template }) => {
%s
})(e2b)
fs.writeFileSync(%s, JSON.stringify(said ?? null))
process.exit(0)
"""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.e2b)


@pytest.fixture(scope="session")
def runtime(request: pytest.FixtureRequest) -> Runtime:
    return machine.find_runtime(request.config.getoption("--runtime"))


# The guests that the SDKs ask for first are there in a fraction of a boot.
SETTINGS = {"warm_templates": "2", "clones_ahead": "1"}


@pytest.fixture(scope="session")
def server(runtime: Runtime, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """This worker's server; the environment says where it is."""
    before = leaks.of_host()
    with machine.private(runtime, tmp_path_factory.mktemp("serve") / "serve.log", **SETTINGS) as served:
        with space.Client(api_url=served.url, api_key=served.api_key) as admin:
            found = Running(served, admin.create_key(tenant="e2b", e2b=True).key)
        os.environ.update(found.env)
        yield found
        for name in found.env:
            del os.environ[name]
    leaks.settle(lambda: leaks.of_instance(served.instance))
    leaks.settle(leaks.of_host, before)


@pytest.fixture(scope="session")
def outside(runtime: Runtime, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Outside]:
    """A server beside servers outside, and two tenants: one may have `open` policies, the other has what its own policy says."""
    before = leaks.of_host()
    with town() as place:
        heads: list[bytes] = []
        for name in (SHOP, OTHER):
            place.serve(name, echo(heads))
        with machine.private(runtime, tmp_path_factory.mktemp("outside") / "serve.log", **SETTINGS, **place.settings) as served:
            with space.Client(api_url=served.url, api_key=served.api_key) as admin:
                keys = [admin.create_key(tenant=tenant, e2b=True).key for tenant in ("opened", "closed")]
                admin.set_tenant_policy("opened", None, permits=["open"])
            yield Outside(place, Running(served, keys[0]), Running(served, keys[1]), heads)
        leaks.settle(lambda: leaks.of_instance(served.instance))
    leaks.settle(leaks.of_host, before)


@pytest.fixture
def e2b_env(server: Running) -> dict[str, str]:
    """The variables that point an SDK at the server; they are set in this process too."""
    return server.env


@pytest.fixture
def sandbox(server: Running) -> Iterator[Any]:
    """A sandbox of the test's own, of E2B's SDK."""
    from e2b import Sandbox

    made = Sandbox.create()
    yield made
    made.kill()


@pytest.fixture(scope="session")
def shared(server: Running) -> Iterator[Any]:
    """One for all tests of the worker that leave it as they found it."""
    from e2b import Sandbox

    made = Sandbox.create(timeout=3600)
    yield made
    made.kill()


@pytest.fixture
def js(server: Running, tmp_path: Path) -> Js:
    """Run the body of an async function with JavaScript's SDKs and give what it returns. It has `e2b`, `interpreter`, `Sandbox`,
    `Template`, `sleep`, `given`: what is passed, and `thrown`: name and message of what a function throws.
    """

    def run(body: str, *, seconds: float = 120, env: dict[str, str] | None = None, **given: Any) -> Any:
        place = tmp_path / "js"
        place.mkdir(exist_ok=True)
        if not (link := place / "node_modules").exists():
            link.symlink_to(CLIENTS.modules)
        answer = place / "answer.json"
        answer.unlink(missing_ok=True)
        program = place / "program.mjs"
        program.write_text(_PROGRAM % (body, json.dumps(str(answer))))
        done = subprocess.run(
            [CLIENTS.node, program],
            input=json.dumps(given).encode(),
            capture_output=True,
            timeout=seconds,
            cwd=place,
            env={"PATH": "/usr/bin:/bin", "HOME": str(place), **server.env, **(env or {})},
            check=False,
        )
        assert done.returncode == 0, (done.stdout + done.stderr).decode(errors="replace")[-4000:]
        return json.loads(answer.read_text())

    return run


@pytest.fixture(autouse=True)
def show_logs(request: pytest.FixtureRequest) -> Iterator[None]:
    """What control and node said, where a test failed."""
    yield
    if getattr(request.node, "failed", False) and "server" in request.fixturenames:
        instance = request.getfixturevalue("server").served.instance
        for path in (instance.log / "control.log", instance.log / "node.log"):
            if path.exists():
                print(f"---- the end of {path.name}")
                print("\n".join(path.read_text(errors="replace").splitlines()[-40:]))
