"""A suspended sandbox as one file, on real guests: it goes out, and comes in as another that goes on from the same memory and disk."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

import space
from space.model.errors import Conflict, InvalidArgument
from space.model.sandbox import Phase
from space.sdk._sync.client import Client

COUNTS = "i=0; while sleep 0.2; do i=$((i+1)); echo $i; done"


def test_a_suspended_sandbox_goes_out_as_a_file_and_comes_in_as_another_that_goes_on(client: Client, tmp_path: Path) -> None:
    file = tmp_path / "night.space"
    with space.Sandbox.create(client=client, memory_mib=256, env={"WHO": "first"}) as sandbox:
        process = sandbox.start(["/bin/sh", "-c", COUNTS])
        sandbox.run("echo kept > /dev/shm/kept && head -c 3000000 /dev/urandom > disk && sha256sum disk > sum", check=True)
        first = sandbox.run("cat /proc/sys/kernel/random/boot_id; hostname", check=True).text
        with pytest.raises(Conflict, match="is running, and a file is made of one that is suspended"):
            sandbox.export(file)
        assert not file.exists()
        sandbox.suspend()
        written = sandbox.export(file)
        assert written == file.stat().st_size
        assert written < (2048 + 256) << 20 >> 3, "holes and what can be packed take no room"
        seen = process.info().stdout_bytes
        sandbox.delete()  # what is in the file needs nothing of it
    other = space.Sandbox.import_file(file, client=client)
    try:
        info = other.info()
        assert (info.phase, info.spec.memory_mib, info.spec.env["WHO"], info.expires_at) == (Phase.SUSPENDED, 256, "first", None)
        assert info.id != sandbox.id
        other.wake()
        info = other.info()
        assert (info.phase, info.start, info.generation) == (Phase.RUNNING, "restore", 2)
        assert other.run("cat /dev/shm/kept && sha256sum -c sum && echo $WHO", check=True).stdout == b"kept\ndisk: OK\nfirst\n"
        assert other.run("cat /proc/sys/kernel/random/boot_id; hostname", check=True).text != first
        end = time.monotonic() + 30
        while other.process(process.id).info().stdout_bytes <= seen:
            assert time.monotonic() < end, "its process does not go on"
            time.sleep(0.2)
        other.suspend()  # and goes out again
        assert other.export(tmp_path / "again.space") > 0
    finally:
        other.delete()


def test_a_file_that_was_changed_or_cut_off_makes_nothing(client: Client, tmp_path: Path) -> None:
    file = tmp_path / "night.space"
    with space.Sandbox.create(client=client, memory_mib=256) as sandbox:
        sandbox.suspend()
        sandbox.export(file)
    data = file.read_bytes()
    for wrong in (data[: len(data) // 2], data[:200] + bytes([data[200] ^ 1]) + data[201:], data[: -(64 << 10)], b"", b"space sandbox 1\n"):
        file.write_bytes(wrong)
        with pytest.raises(InvalidArgument, match="no sandbox that can be imported"):
            space.Sandbox.import_file(file, client=client)
    assert {one.phase for one in space.Sandbox.list(client=client)} == {Phase.GONE}
