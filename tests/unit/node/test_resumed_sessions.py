"""Snapshots that end the pipes of the machine they are taken of: what runs in it goes on, and nothing of it is lost or done twice."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from space.core.wire import files
from space.model.errors import SpaceError, Unavailable
from space.model.ids import new_checkpoint_id
from space.node import limits
from space.rpc import life_api
from space.rpc import node_api as api
from space.testing.memorynode import MemoryNode
from space.testing.processlab import Heard, Lab, drain, lab, until


@pytest.fixture(autouse=True)
def _ends_pipes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MemoryNode, "ends_pipes", True)


def code(heard: Heard) -> int | None:
    assert isinstance(heard.end, api.Exited)
    return heard.end.code


async def checkpoint(one: Lab) -> None:
    name = new_checkpoint_id()
    await one.session.call("checkpoint", life_api.Checkpoint(one.sandbox, name))
    await one.session.call("drop_checkpoint", life_api.CheckpointTarget(one.sandbox, name))


@asynccontextmanager
async def checkpoints(one: Lab, *, least: int) -> AsyncIterator[None]:
    """One after the other while this runs, and so many at least."""
    taken, over = 0, False

    async def take() -> None:
        nonlocal taken
        while not over or taken < least:
            await checkpoint(one)
            taken += 1

    taking = asyncio.create_task(take())
    try:
        yield
    finally:
        over = True
        await taking


async def test_input_and_output_pass_whole_through_any_number_of_snapshots(tmp_path: Path) -> None:
    async with lab(tmp_path) as one:
        process = await one.start("cat", stdin=True, spool_bytes=64 << 20)
        reading = asyncio.create_task(one.output(process))
        sent = os.urandom(16 << 20)
        async with checkpoints(one, least=10):
            assert await one.input(process, sent) == len(sent)
        assert await one.input(process, api.Eof()) == len(sent)
        assert bytes((await reading).lanes[0]) == sent


async def test_an_attached_run_goes_on_with_its_client(tmp_path: Path) -> None:
    async with lab(tmp_path) as one:
        stream = await one.open("cat", stdin=True)
        heard = Heard()
        await heard.take(stream)
        await checkpoint(one)
        await stream.send(b"after")
        await stream.close()
        while await heard.take(stream):
            pass
        assert (bytes(heard.lanes[0]), code(heard)) == (b"after", 0)


async def test_each_start_beside_snapshots_begins_once(tmp_path: Path) -> None:
    async with lab(tmp_path) as one:
        async with checkpoints(one, least=5):
            for index in range(100):
                heard = await drain(await one.open("echo", str(index)))
                assert bytes(heard.lanes[0]) == b"%d\n" % index
                assert code(heard) == 0
        await until(lambda: not one.guest.processes.kept)


async def test_a_kill_that_is_under_way_comes_about(tmp_path: Path) -> None:
    async with lab(tmp_path) as one:
        process = await one.start("sleep", "60")
        async with checkpoints(one, least=3):
            await one.input(process, api.Signal(9, all=True))
            await until(lambda: not one.running)
        assert (await one.info(process)).signal == 9


async def test_what_has_ended_here_is_forgotten_there(tmp_path: Path) -> None:
    async with lab(tmp_path) as one:
        async with checkpoints(one, least=5):
            for _ in range(50):
                process = await one.start("true")
                await one.output(process)
        await until(lambda: not one.guest.processes.kept)


async def test_a_call_that_was_under_way_is_told_to_repeat_and_one_that_comes_meanwhile_waits(tmp_path: Path) -> None:
    async with lab(tmp_path) as one:
        watch = await one.session.open(
            "watch", api.Forward(one.sandbox, msgspec.msgpack.encode(files.Watch(b"/", "root", recursive=False)))
        )
        await anext(watch)  # it has begun
        taking = asyncio.create_task(checkpoint(one))
        with pytest.raises(Unavailable, match=r"cut off by a snapshot .*repeat it"):
            await drain(watch)
        await one.session.call("noop", api.Target(one.sandbox))
        await taking
        assert (await one.state()).phase == "running"


async def test_one_that_stood_still_and_was_not_stored_goes_on_over_the_pipes_that_it_has(tmp_path: Path) -> None:
    async with lab(tmp_path) as one:
        process = await one.start("cat", stdin=True, spool_bytes=64 << 20)
        reading = asyncio.create_task(one.output(process))
        sent = os.urandom(4 << 20)
        feeding = asyncio.create_task(one.input(process, sent))
        for _ in range(5):
            await one.session.call("pause", api.Target(one.sandbox))
            await one.session.call("resume", api.Target(one.sandbox))
        assert await feeding == len(sent)
        await one.input(process, api.Eof())
        assert bytes((await reading).lanes[0]) == sent


async def test_a_guest_that_reads_nothing_holds_up_its_pause_for_a_moment_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "SETTLE", 0.1)
    async with lab(tmp_path) as one:
        vmm = one.node.host.vmm(one.sandbox)
        assert vmm is not None
        vmm.running.clear()
        async with asyncio.timeout(2):
            await one.session.call("pause", api.Target(one.sandbox))
            await checkpoint(one)
            await one.session.call("resume", api.Target(one.sandbox))
        await one.session.call("noop", api.Target(one.sandbox))


async def test_one_that_stood_still_for_its_snapshot_goes_on_when_it_is_resumed(tmp_path: Path) -> None:
    async with lab(tmp_path) as one:
        process = await one.start("cat", stdin=True)
        await one.input(process, b"before")
        await one.session.call("pause", api.Target(one.sandbox))
        await checkpoint(one)
        assert (await one.state()).phase == "paused"
        await one.session.call("resume", api.Target(one.sandbox))
        await one.input(process, b" after", api.Eof())
        assert bytes((await one.output(process)).lanes[0]) == b"before after"


async def test_a_guest_that_hangs_up_on_the_first_pipes_after_its_snapshot_is_greeted_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with lab(tmp_path) as one:
        process = await one.start("cat", stdin=True)
        serve, hung_up = one.guest.serve, 0

        async def serve_later(*pipes: socket.socket) -> None:
            nonlocal hung_up
            if hung_up < 3:
                hung_up += 1
                for pipe in pipes:
                    pipe.close()
            else:
                await serve(*pipes)

        monkeypatch.setattr(one.guest, "serve", serve_later)
        await checkpoint(one)
        assert hung_up == 3
        await one.input(process, b"after", api.Eof())
        assert bytes((await one.output(process)).lanes[0]) == b"after"


async def test_a_guest_that_is_silent_after_its_snapshot_has_failed_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "RECONNECT", 0.2)
    async with lab(tmp_path) as one:
        process = await one.start("sleep", "60")

        async def serve_nobody(*_: object) -> None:
            pass

        monkeypatch.setattr(one.guest, "serve", serve_nobody)
        with pytest.raises(SpaceError, match="did not answer"):
            await checkpoint(one)

        async def failed() -> bool:
            return (await one.state()).phase == "failed"

        await until(failed)
        assert (await one.info(process)).state == "lost"
