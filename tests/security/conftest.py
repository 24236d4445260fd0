"""The egress wall from inside real guests: one town, one instance and one guest for all tests of a worker, each with its own policy."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.security.walled import Walled, told

import space
from space.serve.private import Served
from space.testing import leaks, machine
from space.testing.egresstown import Town, town
from space.testing.machine import Runtime


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.machine)


@pytest.fixture(scope="session")
def runtime(request: pytest.FixtureRequest) -> Runtime:
    """What is tested: the installed runtime, or that of --runtime."""
    return machine.find_runtime(request.config.getoption("--runtime"))


@pytest.fixture(scope="session")
def place() -> Iterator[Town]:
    """What is outside."""
    with town() as made:
        yield made


@pytest.fixture(scope="session")
def served(runtime: Runtime, place: Town, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """An instance that may reach the town."""
    before = leaks.of_host()
    with machine.private(runtime, tmp_path_factory.mktemp("serve") / "serve.log", **place.settings) as found:
        yield found
    leaks.settle(lambda: leaks.of_instance(found.instance))
    leaks.settle(leaks.of_host, before)


@pytest.fixture(scope="session")
def client(served: Served) -> Iterator[space.Client]:
    with space.Client(api_url=served.url, api_key=served.api_key) as found:
        yield found


@pytest.fixture(scope="session")
def _guest(client: space.Client) -> Iterator[space.Sandbox]:
    with space.Sandbox.create(client=client, ttl_seconds=3000) as found:
        yield found


@pytest.fixture
def guest(_guest: space.Sandbox, place: Town, served: Served, request: pytest.FixtureRequest) -> Iterator[Walled]:
    """The guest, with nothing allowed yet and its records from here on."""
    found = Walled(_guest, place)
    yield found
    if getattr(request.node, "failed", False):
        print("\n".join(map(told, found.records()[-60:])))
        print(found.sandbox.egress())
        for path in sorted(served.instance.log.glob("*.log")):
            print(f"---- the end of {path.name}", *path.read_text(errors="replace").splitlines()[-30:], sep="\n")
    _guest.set_policy(None)
