"""Inspect AI, unmodified, with our provider and tasks, against servers with real guests."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from space.serve.private import Served
from space.setup import inspectai
from space.testing import leaks, machine
from space.testing.machine import Runtime

# Behind the tests' own: what both have is of one version.
sys.path.append(str(inspectai.make(Path(__file__).resolve().parents[2])))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.e2b)  # programs of others that a server must serve


@pytest.fixture(scope="session")
def runtime(request: pytest.FixtureRequest) -> Runtime:
    return machine.find_runtime(request.config.getoption("--runtime"))


@pytest.fixture(scope="session")
def served(runtime: Runtime, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server of the tests' own."""
    before = leaks.of_host()
    with machine.private(runtime, tmp_path_factory.mktemp("serve") / "serve.log", warm_templates="1") as found:
        yield found
    leaks.settle(lambda: leaks.of_instance(found.instance))
    leaks.settle(leaks.of_host, before)
