"""Snapshots that come as files by rootd's operations: staged, sealed, and what a death at any step leaves."""

from __future__ import annotations

import asyncio
import json
import os
from dataclasses import asdict, replace

import pytest

from space.config import snapshots as layout
from space.model.errors import Conflict, InvalidArgument, NotFound
from space.model.ids import new_snapshot_id
from space.model.rootd import SealSnapshot, StageSnapshot
from space.rpc.rootd_client import RootdClient, StagedSnapshot
from space.testing.roothost import RootHost

PROGRAM = """
import os, sys
from space.rootd import arrivals, server
def reached(step):
    if step == {step!r}:
        os.kill(os.getpid(), 9)
arrivals.reached = reached
sys.exit(server.main())
"""
STATE = b"devices" * 100
MACHINE = layout.Machine("f" * 32, "f" * 32, "f" * 32, 1, "tcg", "max", 1, 64, "console=ttyS0", "d" * 32, 0)


def staged(host: RootHost, snapshot: str) -> StagedSnapshot:
    found = host.ask(lambda client: client.stage_snapshot(StageSnapshot(snapshot, 64, len(STATE), 16)))
    os.pwrite(found.memory, b"memory", 1 << 20)
    os.pwrite(found.state, STATE, 0)
    os.pwrite(found.disk, b"disk", 3 << 20)
    return found


def facts(state: int, **changes: object) -> str:
    sizes = (16, 64 << 20, len(STATE), 16 << 20)
    digests = {layout.STATE: layout.digest(state)}
    told = layout.SnapshotManifest(
        layout.VERSION, "sn-" + "a" * 20, "sb-" + "a" * 20, 3, "e" * 32, "", False, True, MACHINE, *sizes, 5, 1.5, digests, True
    )
    return json.dumps(asdict(replace(told, **changes)))  # type: ignore[arg-type]


def names(host: RootHost) -> list[str]:
    return [each.name for each in host.instance.snapshots.iterdir()]


def seal(host: RootHost, snapshot: str, text: str) -> None:
    host.ask(lambda client: client.seal_snapshot(SealSnapshot(snapshot, "sb-" + "b" * 20, 1, text)))


def test_what_was_written_is_a_snapshot_under_its_new_name_and_can_go_out_again(host: RootHost) -> None:
    snapshot = new_snapshot_id()
    files = staged(host, snapshot)
    assert host.ask(lambda client: client.list_snapshots()) == ()
    for _ in range(2):  # a repeat is as good
        seal(host, snapshot, facts(files.state))
    files.close()
    [there] = host.ask(lambda client: client.list_snapshots())
    assert (there.snapshot, there.sandbox, there.generation, there.shared, there.durable) == (snapshot, "sb-" + "b" * 20, 1, False, True)
    again = host.ask(lambda client: client.open_snapshot(snapshot))
    assert os.pread(again.memory, 6, 1 << 20) == b"memory"
    assert (os.pread(again.state, 4096, 0), os.pread(again.disk, 4, 3 << 20)) == (STATE, b"disk")
    assert again.manifest["machine"] == asdict(MACHINE)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.write(again.memory, b"x")
    again.close()
    host.ask(lambda client: client.discard_snapshot(snapshot))
    with pytest.raises(NotFound):
        host.ask(lambda client: client.open_snapshot(snapshot))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"state_bytes": 7}, "was told"),
        ({"memory_bytes": 7}, "was told"),
        ({"disk_mib": 17}, "was told"),
        ({"machine": replace(MACHINE, memory_mib=65)}, "was told"),
        ({"digests": {}}, "not what was stored"),
        ({"version": 1}, "version 1"),
        ({"complete": False}, "never completed"),
    ],
)
def test_what_is_not_as_it_was_told_is_no_snapshot(host: RootHost, changes: dict[str, object], words: str) -> None:
    snapshot = new_snapshot_id()
    files = staged(host, snapshot)
    with pytest.raises(Conflict, match=words):
        seal(host, snapshot, facts(files.state, **changes))
    files.close()
    assert host.ask(lambda client: client.list_snapshots()) == ()
    host.ask(lambda client: client.discard_snapshot(snapshot))
    assert names(host) == []


def test_a_device_state_that_was_changed_after_it_was_stored_is_no_snapshot(host: RootHost) -> None:
    snapshot = new_snapshot_id()
    files = staged(host, snapshot)
    told = facts(files.state)
    os.pwrite(files.state, b"X", 5)
    with pytest.raises(Conflict, match="not what was stored"):
        seal(host, snapshot, told)
    files.close()
    host.ask(lambda client: client.discard_snapshot(snapshot))


def test_facts_that_are_no_object_are_refused_and_nothing_is_sealed_that_was_not_staged(host: RootHost) -> None:
    for text in ("", "7", "[1]", '"x"', "{" * 1000):
        with pytest.raises(InvalidArgument):
            seal(host, new_snapshot_id(), text)
    with pytest.raises(NotFound, match="nothing was staged"):
        seal(host, new_snapshot_id(), "{}")


def test_what_a_node_that_died_was_writing_goes_when_the_next_begins_and_what_is_being_written_stays(host: RootHost) -> None:
    left, held = new_snapshot_id(), new_snapshot_id()
    staged(host, left).close()
    files = staged(host, held)
    host.ask(lambda client: client.describe())
    assert names(host) == [f".new.{held}.import"]
    files.close()
    host.ask(lambda client: client.describe())
    assert names(host) == []


@pytest.mark.parametrize("step", ["snapshot import staged", "snapshot import described", "snapshot import committed"])
def test_snapshot_that_comes_is_whole_or_not_there_wherever_rootd_is_killed(host: RootHost, step: str) -> None:
    """Cut off, then done again by the next rootd."""
    snapshot = new_snapshot_id()
    host.stop_rootd()
    host.start_rootd(program=("-c", PROGRAM.format(step=step)))

    async def work(client: RootdClient) -> None:
        files = await client.stage_snapshot(StageSnapshot(snapshot, 64, len(STATE), 16))
        os.pwrite(files.state, STATE, 0)
        try:
            await client.seal_snapshot(SealSnapshot(snapshot, "sb-" + "b" * 20, 1, facts(files.state)))
        finally:
            files.close()

    async def killed(client: RootdClient) -> None:
        asked = asyncio.create_task(work(client))
        assert host.rootd is not None
        await asyncio.to_thread(host.rootd.wait, 20)
        there = [each.name for each in host.instance.snapshots.iterdir() if not each.name.startswith(".")]
        assert there == ([snapshot] if step.endswith("committed") else [])
        await asyncio.to_thread(host.start_rootd)
        await asyncio.wait_for(asked, 20)

    host.ask(killed)
    assert [each.snapshot for each in host.ask(lambda client: client.list_snapshots())] == [snapshot]
    assert names(host) == [snapshot]
    host.ask(lambda client: client.discard_snapshot(snapshot))
