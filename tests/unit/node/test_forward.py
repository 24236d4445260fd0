"""Files, watches and ports through the node: the guest's answers unchanged, both ways, and a guest that leaves the script is ended."""

from __future__ import annotations

import asyncio
import os
import zlib
from pathlib import Path

import msgspec
import pytest

from space.core.wire import files
from space.core.wire import guest as wire
from space.model.errors import Conflict, InvalidArgument, NotFound, ProtocolError, SandboxDied, TooLarge
from space.node.relay import FORWARDED, Held
from space.rpc import node_api as api
from space.rpc.session import Data
from space.rpc.stream import Stream
from space.testing.processlab import Lab, lab, until


async def forward(one: Lab, verb: str, request: msgspec.Struct) -> Stream:
    asked = api.Forward(one.sandbox, msgspec.msgpack.encode(request))
    return await one.session.open(verb, asked, finish=verb not in ("file_write", "connect"))


async def answer(stream: Stream) -> tuple[bytes, list[wire.Message]]:
    data, messages = b"", []
    async with stream:
        async for event in stream:
            if isinstance(event, Data):
                data += event.payload
            else:
                messages.append(wire.decode(event.payload))
    return data, messages


async def put(one: Lab, path: bytes, data: bytes, *, crc32: int | None = None) -> list[wire.Message]:
    stream = await forward(one, "file_write", files.FileWrite(path, None, None, False, True, False))
    await stream.send(data)
    await stream.send_message(files.Content(len(data), zlib.crc32(data) if crc32 is None else crc32))
    stream.close_now()
    return (await answer(stream))[1]


async def test_a_file_goes_in_and_out_whole_and_its_figures_with_it(tmp_path: Path) -> None:
    async with lab(tmp_path) as one:
        data = os.urandom(5 << 20)
        (written,) = await put(one, b"/tmp/a/b", data)
        assert isinstance(written, files.FileAnswer)
        assert written.file.size == len(data)
        read, (file, content) = await answer(await forward(one, "file_read", files.FileRead(b"/tmp/a/b", None, 0, None)))
        assert read == data
        assert content == files.Content(len(data), zlib.crc32(data))
        assert file == written
        _, (listed, end) = await answer(await forward(one, "file_list", files.FileList(b"/tmp", None, 2, None, 100)))
        assert isinstance(listed, files.Files)
        assert {each.name for each in listed.files} == {b"a", b"a/b"}
        assert end == files.Listed(False)
        (_, done) = await answer(await forward(one, "file_remove", files.FileRemove(b"/tmp/a", None, True, False)))
        assert done == [wire.Done()]


async def test_the_guests_refusals_come_as_they_are(tmp_path: Path) -> None:
    async with lab(tmp_path) as one:
        with pytest.raises(NotFound):
            await answer(await forward(one, "file_stat", files.FileStat(b"/nowhere", None, True)))
        with pytest.raises(Conflict, match=r"."):
            await answer(await forward(one, "file_read", files.FileRead(b"/tmp", None, 0, None)))
        with pytest.raises(InvalidArgument):
            await put(one, b"/tmp/x", b"data", crc32=1)
        with pytest.raises(NotFound):
            await answer(await forward(one, "file_stat", files.FileStat(b"/tmp/x", None, True)))
        with pytest.raises(NotFound):
            await answer(await forward(one, "connect", files.Connect(9)))


@pytest.mark.parametrize(
    ("verb", "request_bytes"),
    [("file_stat", b"\x80"), ("file_stat", b"\xc1"), ("connect", msgspec.msgpack.encode({"port": 0})), ("watch", b"")],
)
async def test_a_wrong_request_does_not_reach_the_guest(tmp_path: Path, verb: str, request_bytes: bytes) -> None:
    async with lab(tmp_path) as one:
        one.guest._verbs.clear()
        with pytest.raises(InvalidArgument):
            await one.session.call(verb, api.Forward(one.sandbox, request_bytes))


async def test_a_request_that_fits_no_frame_is_too_large(tmp_path: Path) -> None:
    async with lab(tmp_path) as one:
        with pytest.raises(TooLarge):
            await answer(await forward(one, "file_stat", files.FileStat(b"/" + b"x" * 70_000, None, True)))


async def test_a_watch_tells_until_control_leaves(tmp_path: Path) -> None:
    async with lab(tmp_path) as one:
        stream = await forward(one, "watch", files.Watch(b"/tmp", None, True))
        assert wire.decode((await anext(stream)).payload) == files.Watching()
        await put(one, b"/tmp/new", b"x")
        told = wire.decode((await anext(stream)).payload)
        assert isinstance(told, files.Changes)
        assert told.changes[0].path == b"new"
        await stream.reset("unavailable", "enough")


async def test_a_connection_carries_both_directions_and_each_ends_for_itself(tmp_path: Path) -> None:
    async with lab(tmp_path) as one:
        got = asyncio.get_running_loop().create_future()

        async def speaks_and_then_listens(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(b"hello")
            writer.write_eof()
            got.set_result(await reader.read(-1))
            writer.close()

        one.guest.files.ports[80] = speaks_and_then_listens
        stream = await forward(one, "connect", files.Connect(80))
        assert wire.decode((await anext(stream)).payload) == files.Connected()
        data = b"".join([event.payload async for event in stream])
        assert data == b"hello"
        sent = os.urandom(3 << 20)
        await stream.send(sent)
        stream.close_now()
        assert await got == sent


@pytest.mark.parametrize(
    ("verb", "messages"),
    [
        ("file_stat", [wire.Done()]),
        ("file_stat", []),
        ("file_list", [files.Listed(False), files.Files([])]),
        ("file_list", [files.Files([])]),
        ("file_read", [files.Content(0, 0)]),
        ("watch", [files.Changes([])]),
        ("watch", [files.Watching(), files.Watching()]),
        ("connect", [files.Connected(), files.Connected()]),
    ],
)
async def test_a_guest_that_leaves_the_script_of_a_verb_loses_its_sandbox(
    tmp_path: Path, verb: str, messages: list[msgspec.Struct]
) -> None:
    requests: dict[str, msgspec.Struct] = {
        "file_stat": files.FileStat(b"/", None, True),
        "file_list": files.FileList(b"/", None, 1, None, 10),
        "file_read": files.FileRead(b"/", None, 0, None),
        "watch": files.Watch(b"/", None, True),
        "connect": files.Connect(1),
    }
    async with lab(tmp_path) as one:

        async def lie(stream: Stream, _: bytes) -> None:
            for message in messages:
                await stream.send_message(message)

        one.guest._verbs[verb] = lie
        with pytest.raises((ProtocolError, SandboxDied)):
            await answer(await forward(one, verb, requests[verb]))

        async def failed() -> bool:
            return (await one.state()).phase == "failed"

        await until(failed)


def test_data_comes_only_where_the_script_has_it() -> None:
    for verb, script in FORWARDED.items():
        if verb not in ("file_read", "connect"):
            with pytest.raises(ProtocolError, match="data"):
                Held(script).data()
    held = Held(FORWARDED["file_read"])
    with pytest.raises(ProtocolError, match="data"):
        held.data()
    held.message(msgspec.msgpack.encode(files.FileAnswer(files.File(b"", "file", 0, 0, 0, 0, 0, "", "", 0, 0, 0, None))))
    held.data()
    held.message(msgspec.msgpack.encode(files.Content(0, 0)))
    with pytest.raises(ProtocolError, match="data"):
        held.data()
    held.close()
