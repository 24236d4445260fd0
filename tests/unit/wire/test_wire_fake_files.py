"""FakeGuest's files, watches and ports do what docs/protocol.md, section 2, "Files" says."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import zlib
from collections.abc import AsyncIterator, Iterator

import msgspec
import pytest

from space.core.wire import files, guest
from space.model.errors import Conflict, InvalidArgument, NotFound, SpaceError
from space.rpc.session import Data, Session
from space.testing.guest import FakeGuest


@contextlib.asynccontextmanager
async def booted() -> AsyncIterator[tuple[FakeGuest, Session]]:
    fake = FakeGuest()
    (control, theirs), (bulk, their_bulk) = socket.socketpair(), socket.socketpair()
    await fake.serve(theirs, their_bulk)
    session = await Session.open_guest(control, bulk, 7, reconnect=False)
    try:
        async with asyncio.timeout(20):
            yield fake, session
    finally:
        await session.aclose()
        fake.kill()


async def call(session: Session, verb: str, request: msgspec.Struct) -> files.File:
    return guest.expect(files.FileAnswer, await session.call(verb, request)).file


async def write(session: Session, path: bytes, data: bytes, **options: object) -> files.File:
    request = files.FileWrite(path, None, None, append=False, parents=False, exclusive=False)
    request = msgspec.structs.replace(request, **options)
    async with await session.open("file_write", request, bulk=True) as stream:
        await stream.send(data)
        await stream.send_message(files.Content(len(data), zlib.crc32(data)))
        await stream.close()
        [event] = [event async for event in stream]
    return guest.expect(files.FileAnswer, event.payload).file


async def read(session: Session, path: bytes, offset: int = 0, length: int | None = None) -> bytes:
    stream = await session.open("file_read", files.FileRead(path, None, offset, length), bulk=True, finish=True)
    events = [event async for event in stream]
    data = b"".join(event.payload for event in events if isinstance(event, Data))
    assert guest.decode(events[-1].payload) == files.Content(len(data), zlib.crc32(data))
    guest.expect(files.FileAnswer, events[0].payload)
    return data


async def listed(session: Session, path: bytes, depth: int, after: bytes | None, limit: int) -> tuple[list[bytes], bool]:
    stream = await session.open("file_list", files.FileList(path, None, depth, after, limit), bulk=True, finish=True)
    *pages, last = [guest.decode(event.payload) async for event in stream]
    assert isinstance(last, files.Listed)
    return [file.name for page in pages if isinstance(page, files.Files) for file in page.files], last.more


@contextlib.contextmanager
def refused(code: str) -> Iterator[None]:
    with pytest.raises(SpaceError) as error:
        yield
    assert error.value.code == code


def test_a_file_comes_back_as_it_went() -> None:
    async def main() -> None:
        async with booted() as (fake, session):
            sent = os.urandom(3 << 20)
            file = await write(session, b"a \xff\n", sent, mode=0o600)
            assert (file.name, file.kind, file.size, file.mode, file.owner) == (b"a \xff\n", "file", 3 << 20, 0o600, "user")
            assert await read(session, b"/home/user/a \xff\n") == sent
            assert await read(session, b"a \xff\n", 3, 5) == sent[3:8]
            assert await read(session, b"a \xff\n", 4 << 20) == b""
            assert (await write(session, b"a \xff\n", b"new")).mode == 0o600, "an existing file keeps its mode"
            await write(session, b"a \xff\n", b"er", append=True)
            assert await read(session, b"a \xff\n") == b"newer"
            assert list((fake.files.root.parent / "staged").iterdir()) == []

    asyncio.run(main())


def test_what_cannot_be_written_changes_nothing() -> None:
    async def main() -> None:
        async with booted() as (_, session):
            await write(session, b"old", b"old")
            with refused("conflict"):
                await write(session, b"old", b"new", exclusive=True)
            with refused("not_found"):
                await write(session, b"no/old", b"new")
            with refused("conflict"):
                await write(session, b"/tmp", b"new")
            async with await session.open("file_write", files.FileWrite(b"old", None, None, False, False, False), bulk=True) as stream:
                await stream.send(b"new")
                await stream.send_message(files.Content(3, 1))
                await stream.close()
                with pytest.raises(InvalidArgument, match="not what was sent"):
                    await anext(stream)
            assert await read(session, b"old") == b"old"
            assert (await write(session, b"no/old", b"new", parents=True)).size == 3

    asyncio.run(main())


def test_links_are_followed_within_the_guest() -> None:
    async def main() -> None:
        async with booted() as (fake, session):
            await write(session, b"/tmp/real", b"1")
            link = await call(session, "file_symlink", files.FileSymlink(b"link", None, b"/tmp/real", replace=False))
            assert (link.kind, link.target) == ("symlink", b"/tmp/real")
            await write(session, b"link", b"22")
            assert await read(session, b"/tmp/real") == b"22"
            assert (await call(session, "file_stat", files.FileStat(b"link", None, follow=True))).kind == "file"
            await call(session, "file_symlink", files.FileSymlink(b"link", None, b"../../../../../etc/passwd", replace=True))
            with refused("not_found"):
                await read(session, b"link")
            assert not (fake.files.root / "etc").exists()

    asyncio.run(main())


def test_a_listing_goes_on_behind_its_last_name() -> None:
    async def main() -> None:
        async with booted() as (_, session):
            names = [b"a", b"a/b", b"a/b/c", b"a-b", b"b", b"\xff"]
            for name in (b"a/b/c", b"a-b", b"b", b"\xff"):
                await write(session, b"/tmp/x/" + name, b"", parents=True)
            assert await listed(session, b"/tmp/x", 9, None, 100) == (names, False)
            assert await listed(session, b"/tmp/x", 1, None, 2) == ([b"a", b"a-b"], True)
            for limit in (1, 2, 5):
                found: list[bytes] = []
                more = True
                while more:
                    page, more = await listed(session, b"/tmp/x", 9, found[-1] if found else None, limit)
                    found += page
                assert found == names

    asyncio.run(main())


def test_directories_are_made_moved_and_removed() -> None:
    async def main() -> None:
        async with booted() as (_, session):
            made = await call(session, "file_mkdir", files.FileMkdir(b"d/e", None, 0o700, parents=True))
            assert (made.kind, made.mode) == ("directory", 0o700)
            with pytest.raises(Conflict):
                await call(session, "file_mkdir", files.FileMkdir(b"d", None, None, parents=False))
            with pytest.raises(Conflict):
                await call(session, "file_move", files.FileMove(b"d", None, b"/tmp", replace=False))
            assert (await call(session, "file_move", files.FileMove(b"d", None, b"f", replace=False))).name == b"f"
            await call(session, "file_chown", files.FileChown(b"f", None, "root", "7", recursive=True))
            assert (await call(session, "file_chmod", files.FileChmod(b"f/e", None, 0o755, recursive=False))).group == "7"
            with pytest.raises(Conflict):
                await session.call("file_remove", files.FileRemove(b"f", None, recursive=False, missing_ok=False))
            for recursive, missing_ok in ((True, False), (False, True)):
                guest.expect(guest.Done, await session.call("file_remove", files.FileRemove(b"f", None, recursive, missing_ok)))
            with pytest.raises(NotFound):
                await session.call("file_remove", files.FileRemove(b"f", None, recursive=True, missing_ok=False))

    asyncio.run(main())


def test_a_watch_hears_of_what_happens_below_it() -> None:
    async def main() -> None:
        async with booted() as (fake, session):
            await call(session, "file_mkdir", files.FileMkdir(b"/tmp/w/in", None, None, parents=True))
            stream = await session.open("watch", files.Watch(b"/tmp/w", None, recursive=True), finish=True)
            guest.expect(files.Watching, (await anext(stream)).payload)
            await write(session, b"/tmp/w/in/a", b"")
            await write(session, b"/tmp/w/in/a", b"1")
            await call(session, "file_move", files.FileMove(b"/tmp/w/in/a", None, b"/tmp/w/b", replace=False))
            await call(session, "file_move", files.FileMove(b"/tmp/w/b", None, b"/tmp/b", replace=False))
            fake.files.tell("attributes", b"/tmp/w/in", directory=True)
            await session.call("file_remove", files.FileRemove(b"/tmp/w", None, recursive=True, missing_ok=False))
            found = [change async for event in stream for change in guest.expect(files.Changes, event.payload).changes]
            assert [(one.kind, one.path, one.origin) for one in found] == [
                ("created", b"in/a", None),
                ("modified", b"in/a", None),
                ("moved", b"b", b"in/a"),
                ("deleted", b"b", None),
                ("attributes", b"in", None),
                ("deleted", b"", None),
            ]

    asyncio.run(main())


def test_a_port_takes_and_sends_until_both_have_ended() -> None:
    async def main() -> None:
        async with booted() as (fake, session):

            async def count(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                writer.write(str(len(await reader.read())).encode())
                writer.close()

            fake.files.ports[80] = count
            for port, want in ((7, b"x" * 3_000_000), (80, b"3000000")):
                async with await session.open("connect", files.Connect(port), bulk=True) as stream:
                    guest.expect(files.Connected, (await anext(stream)).payload)

                    async def send() -> None:
                        await stream.send(b"x" * 3_000_000)
                        await stream.close()

                    sending = asyncio.create_task(send())
                    assert b"".join([event.payload async for event in stream]) == want
                    await sending
            with pytest.raises(NotFound, match="nothing listens on port 81"):
                await session.call("connect", files.Connect(81), bulk=True)

    asyncio.run(main())
