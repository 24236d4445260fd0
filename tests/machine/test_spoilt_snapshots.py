"""A suspended sandbox whose stored memory cannot be used any more (another version of space, another VMM, a damaged file) says why, stays,
also over a restart, and boots from its disk.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

import space
from space.config import snapshots as layout
from space.model.errors import SpaceError
from space.model.sandbox import Phase
from space.testing.machine import Server


def _of_another_version(place: Path) -> None:
    path = place / layout.MANIFEST
    path.write_text(json.dumps(json.loads(path.read_text()) | {"version": layout.VERSION + 1}))


def _of_another_vmm(place: Path) -> None:
    path = place / layout.MANIFEST
    told = json.loads(path.read_text())
    path.write_text(json.dumps(told | {"machine": told["machine"] | {"vmm": "0" * 32}}))


def _cut_short(place: Path) -> None:
    os.truncate(place / layout.MEMORY, 64 << 20)


@pytest.mark.parametrize(
    ("harm", "words"),
    [(_of_another_version, "has version"), (_of_another_vmm, "vmm is"), (_cut_short, "its memory has")],
)
def test_a_stored_memory_that_cannot_be_used_says_why_stays_over_a_restart_and_its_disk_boots(
    server: Callable[..., Server], harm: Callable[[Path], None], words: str
) -> None:
    one = server(warm_templates="1")
    name = ""
    with _client(one) as client:
        sandbox = space.Sandbox.create(client=client, memory_mib=256)
        sandbox.run("echo kept > disk && sync", check=True)
        sandbox.suspend()
        name = sandbox.id
    (place,) = [path for path in one.instance.snapshots.iterdir() if _is_of(path, name)]
    harm(place)
    for _ in range(2):
        with _client(one) as client:
            sandbox = space.Sandbox.connect(name, client=client)
            assert sandbox.info().phase is Phase.SUSPENDED, sandbox.info()
            with pytest.raises(SpaceError, match=words) as caught:
                sandbox.wake()
            assert "cold" in (caught.value.hint or ""), caught.value
            assert sandbox.info().phase is Phase.SUSPENDED
        one.stop()
        one.start()
    with _client(one) as client:
        sandbox = space.Sandbox.connect(name, client=client)
        sandbox.wake(cold=True)
        assert (sandbox.run("cat disk", check=True).stdout, sandbox.info().start) == (b"kept\n", "cold")
        sandbox.delete()
    assert not place.exists()


def _client(one: Server) -> space.Client:
    assert one.served is not None
    return space.Client(api_url=one.served.url, api_key=one.served.api_key)


def _is_of(place: Path, sandbox: str) -> bool:
    return bool(json.loads((place / layout.MANIFEST).read_text())["sandbox"] == sandbox)
