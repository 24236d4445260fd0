"""A private instance with real privileges, and the proof that nothing of it is left."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from space.rootd.sweep import sweep
from space.testing import roothost
from space.testing.roothost import RootHost


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.host)


@pytest.fixture(scope="session")
def artefacts() -> Iterator[Path]:
    """A store that all tests of a worker share, read-only for all that they do."""
    with tempfile.TemporaryDirectory(prefix="sa") as name:
        roothost.build_artefacts(Path(name))
        yield Path(name)


@pytest.fixture
def root() -> Iterator[Path]:
    """A directory with a short name (a socket's path has at most 107 bytes)."""
    with tempfile.TemporaryDirectory(prefix="sh") as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.fixture
def unserved(root: Path, artefacts: Path) -> Iterator[RootHost]:
    """An instance whose rootd the test starts itself; afterwards nothing of it is left and no call failed by our fault."""
    host = RootHost(roothost.make_instance(f"t{os.getpid()}", root, artefacts, os.getpid()))
    try:
        yield host
    finally:
        if host.rootd is not None:
            host.stop_rootd()
        host.listener.close()
        left = sweep(host.instance)
        shown = host.log.read_text() if host.log.exists() else ""
        print(shown)
    assert left == []
    assert host.traces() == []
    assert "Traceback" not in shown


@pytest.fixture
def host(unserved: RootHost) -> RootHost:
    """An instance with a rootd that answers."""
    unserved.start_rootd()
    return unserved
