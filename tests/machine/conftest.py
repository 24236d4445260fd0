"""Real guests through the whole stack. Each worker has one private instance that its tests share; some make servers of their own.

Nothing here is skipped: without artefacts or a runtime the tests fail and name the remedy. Every teardown proves that the
sandboxes of the test are gone from the host, and the session's that the instance is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest

import space
from space.config.instance import Instance
from space.serve.private import Served
from space.testing import leaks, machine
from space.testing.machine import Runtime, Server


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.machine)


@pytest.fixture(scope="session")
def runtime(request: pytest.FixtureRequest) -> Runtime:
    """What is tested: the installed runtime, or that of --runtime."""
    return machine.find_runtime(request.config.getoption("--runtime"))


@pytest.fixture(scope="session")
def served(runtime: Runtime, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """This worker's private instance."""
    before = leaks.of_host()
    log = tmp_path_factory.mktemp("serve") / "serve.log"
    with machine.private(runtime, log) as found:
        yield found
    leaks.settle(lambda: leaks.of_instance(found.instance))
    leaks.settle(leaks.of_host, before)


@pytest.fixture(scope="session")
def client(served: Served) -> Iterator[space.Client]:
    """The SDK's connection to the worker's instance."""
    with space.Client(api_url=served.url, api_key=served.api_key) as found:
        yield found


@pytest.fixture(scope="session")
def shared(client: space.Client) -> Iterator[space.Sandbox]:
    """One sandbox for all tests of the worker that leave it as they found it."""
    with space.Sandbox.create(client=client) as found:
        yield found


@pytest.fixture
def sandbox(client: space.Client) -> Iterator[space.Sandbox]:
    """A sandbox of the test's own."""
    with space.Sandbox.create(client=client) as found:
        yield found


@pytest.fixture
def server(runtime: Runtime, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Callable[[], Server]]:
    """Makes servers whose processes may be killed; each is removed whole at the end, and nothing of it is left."""
    before = leaks.of_host()
    made: list[Server] = []
    instances: dict[str, Instance] = {}

    def make(**settings: str) -> Server:
        one = Server(runtime, tmp_path / "serve.log", settings)
        made.append(one)
        one.start()
        instances[one.name] = one.instance  # by name: two may be made at the same time
        return one

    yield make
    if getattr(request.node, "failed", False):
        for instance in instances.values():
            _show_logs(instance, tmp_path / "serve.log")
    with ExitStack() as stack:  # the second is closed, and looked for, even if the first left something
        for one in made:
            if one.name in instances:
                stack.callback(leaks.settle, partial(leaks.of_instance, instances[one.name]))
            stack.callback(one.close)
    leaks.settle(leaks.of_host, before)


@pytest.fixture(autouse=True)
def nothing_of_the_test_is_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """Around each test of the shared instance: its sandboxes hold the same before and after."""
    if "served" not in request.fixturenames:
        yield
        return
    instance: Instance = request.getfixturevalue("served").instance
    if "shared" in request.fixturenames:
        request.getfixturevalue("shared")
    before = leaks.of_sandboxes(instance)
    yield
    if getattr(request.node, "failed", False):
        _show_logs(instance)
    leaks.settle(lambda: leaks.of_sandboxes(instance), before)


def _show_logs(instance: Instance, *more: Path) -> None:
    for path in (*more, *sorted(instance.log.glob("*.log"))):
        if path.exists():
            print(f"---- the end of {path.name} of {instance.name}")
            print("\n".join(path.read_text(errors="replace").splitlines()[-60:]))
