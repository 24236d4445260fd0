"""Streams through the node: data in and out whole, back-pressure by credit, resets that reach the process, and who may connect."""

from __future__ import annotations

import asyncio
import io
import os
import socket
import tarfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from space.model.errors import InvalidArgument, NotFound, SpaceError, TooLarge, Unsupported
from space.model.ids import new_sandbox_id
from space.model.isolation import EMULATED
from space.rpc import node_api as api
from space.rpc.session import Data, Door, Session
from space.testing.guest import FakeGuest
from space.testing.memorynode import MemoryNode


@asynccontextmanager
async def running(directory: Path) -> AsyncIterator[tuple[Session, str, FakeGuest]]:
    guest = FakeGuest()
    async with MemoryNode(directory, guests=lambda: guest) as lab, lab.connected() as session:
        name = new_sandbox_id()
        async with await session.open("create", api.Create(name, "acme", 1, "base", 1, 512, 2048, {"A": "1"}), finish=True) as stream:
            async for _ in stream:
                pass
        yield session, name, guest


async def run(session: Session, asked: api.Exec, stdin: bytes = b"") -> tuple[list[bytes], api.Exited]:
    lanes, end = [b"", b""], None
    async with await session.open("exec", asked) as stream:
        sending = asyncio.create_task(stream.send(stdin)) if stdin else None
        if sending is not None:
            sending.add_done_callback(lambda _: stream.close_now())
        else:
            stream.close_now()
        async for event in stream:
            if isinstance(event, Data):
                lanes[event.lane] += event.payload
            else:
                end = msgspec.msgpack.decode(event.payload, type=api.Started | api.Exited)
    assert isinstance(end, api.Exited)
    return lanes, end


async def test_input_comes_out_whole_and_both_lanes_are_apart(tmp_path: Path) -> None:
    async with running(tmp_path) as (session, name, _):
        data = os.urandom(3 << 20)
        (out, err), end = await run(session, api.Exec(name, ["cat"], stdin=True), data)
        assert (out == data, err, end.code) == (True, b"", 0)
        (out, err), _ = await run(session, api.Exec(name, ["err", "a", "b"]))
        assert (out, err) == (b"", b"a b\n")
        (out, _), _ = await run(session, api.Exec(name, ["env"], env={"B": "\u00fc"}))
        assert out == "A=1\nB=\u00fc\n".encode()


async def test_a_process_that_does_not_read_its_input_still_ends_the_stream(tmp_path: Path) -> None:
    async with running(tmp_path) as (session, name, _):
        async with asyncio.timeout(10):
            _, end = await run(session, api.Exec(name, ["exit", "7"], stdin=True), bytes(8 << 20))
        assert end.code == 7


async def test_a_slow_reader_stalls_its_own_process_only(tmp_path: Path) -> None:
    async with running(tmp_path) as (session, name, guest):
        hungry = api.Exec(name, ["yes-bytes", str(64 << 20)])
        async with await session.open("exec", hungry, finish=True) as slow:
            await anext(slow)
            for _ in range(20):
                await session.call("noop", api.Target(name))
            assert guest.running, "64 MiB went nowhere: the process must still be writing"
            (out, _), _ = await run(session, api.Exec(name, ["echo", "beside"]))
            assert out == b"beside\n"
            taken = 0
            async for event in slow:
                taken += len(event.payload) if isinstance(event, Data) else 0
            assert taken == 64 << 20


async def test_controls_reset_and_the_end_of_its_session_kill_the_process(tmp_path: Path) -> None:
    async with running(tmp_path) as (session, name, guest):

        async def gone() -> None:
            deadline = asyncio.get_running_loop().time() + 10
            while guest.running:
                assert asyncio.get_running_loop().time() < deadline, guest.running
                await asyncio.sleep(0.005)

        stream = await session.open("exec", api.Exec(name, ["sleep", "60"]), finish=True)
        await anext(stream)
        await stream.reset("unavailable", "the client left")
        await gone()
        stream = await session.open("exec", api.Exec(name, ["cat"], stdin=True))
        await anext(stream)
        await session.aclose()
        await gone()


async def test_a_tree_goes_in_and_out(tmp_path: Path) -> None:
    async with running(tmp_path) as (session, name, _):
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w") as archive:
            info = tarfile.TarInfo("big")
            info.size = 5 << 20
            archive.addfile(info, io.BytesIO(os.urandom(info.size)))
        tar = buffer.getvalue()
        async with await session.open("tree_put", api.Tree(name, "/x")) as stream:
            await stream.send(tar)
            stream.close_now()
            done = [msgspec.msgpack.decode(event.payload, type=api.TreeDone) async for event in stream]
        assert (done[0].entries, done[0].bytes) == (1, len(tar))
        async with await session.open("tree_get", api.Tree(name, "/x"), finish=True) as stream:
            assert b"".join([event.payload async for event in stream if isinstance(event, Data)]) == tar
        with pytest.raises(NotFound, match="there is no"):
            await session.call("tree_get", api.Tree(name, "/y"))


@pytest.mark.parametrize(
    ("asked", "error"),
    [
        (api.Exec("", ["nothing-like-it"]), NotFound),
        (api.Exec("", []), InvalidArgument),
        (api.Exec("", ["a\0b"]), InvalidArgument),
        (api.Exec("", ["env"], env={"A=B": "c"}), InvalidArgument),
        (api.Exec("", ["echo", "x" * 100_000]), TooLarge),
    ],
    ids=["no program", "no argv", "NUL", "a name with =", "too large"],
)
async def test_a_wrong_exec_is_refused_and_the_sandbox_goes_on(tmp_path: Path, asked: api.Exec, error: type[SpaceError]) -> None:
    async with running(tmp_path) as (session, name, _):
        with pytest.raises(error):
            await session.call("exec", msgspec.structs.replace(asked, sandbox=name))
        await session.call("noop", api.Target(name))


async def test_unknown_verbs_and_requests_are_refused(tmp_path: Path) -> None:
    async with running(tmp_path) as (session, _, _):
        with pytest.raises(Unsupported):
            await session.call("format_disk", api.Empty())
        with pytest.raises(InvalidArgument):
            await session.call("noop", b"\x81\xa1x\x01")
        info = msgspec.msgpack.decode(await session.call("info", api.Empty()), type=api.NodeInfo)
        assert (info.isolation, info.templates, info.sandboxes) == (EMULATED, ["base"], 1)


async def test_another_uid_is_turned_away(tmp_path: Path) -> None:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(str(tmp_path / "sock"))
    listener.listen()

    async def never(*_: object) -> None:
        raise AssertionError

    door = Door(listener, frozenset({os.getuid() + 1}), never)
    door.open()
    with pytest.raises(SpaceError):
        async with asyncio.timeout(10):
            await Session.connect(tmp_path / "sock")
    door.close()
    listener.close()
