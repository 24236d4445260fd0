"""A guest's verbs of files, watches and ports as calls over a session: for tests of the daemon, of its fake, and of what is between."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

import msgspec

from space.core.wire import files, guest
from space.core.wire.events import Data
from space.rpc.session import Session
from space.rpc.stream import Stream

HERE = files.FileWrite(b"", None, None, append=False, parents=False, exclusive=False)


async def call(session: Session, verb: str, request: msgspec.Struct) -> files.File:
    """A verb that answers with a file."""
    return guest.expect(files.FileAnswer, await session.call(verb, request)).file


async def write(session: Session, path: bytes, data: bytes | Iterable[bytes], **options: object) -> files.File:
    """file_write of these bytes. options: the other fields of the request."""
    request = msgspec.structs.replace(HERE, path=path, **options)
    count = crc = 0
    async with await session.open("file_write", request, bulk=True) as stream:
        for piece in [data] if isinstance(data, bytes) else data:
            await stream.send(piece)
            count, crc = count + len(piece), zlib.crc32(piece, crc)
        await stream.send_message(files.Content(count, crc))
        await stream.close()
        [event] = [event async for event in stream]
    return guest.expect(files.FileAnswer, event.payload).file


async def read_pieces(session: Session, path: bytes, offset: int = 0, length: int | None = None) -> AsyncIterator[bytes]:
    """file_read; what came is what the guest counted, or it fails."""
    stream = await session.open("file_read", files.FileRead(path, None, offset, length), bulk=True, finish=True)
    count = crc = 0
    said: list[guest.Message] = []
    async for event in stream:
        if isinstance(event, Data):
            assert len(said) == 1, "the file comes first, its count last"
            count, crc = count + len(event.payload), zlib.crc32(event.payload, crc)
            yield event.payload
        else:
            said.append(guest.decode(event.payload))
    file, content = said
    assert isinstance(file, files.FileAnswer)
    assert content == files.Content(count, crc)


async def read(session: Session, path: bytes, offset: int = 0, length: int | None = None) -> bytes:
    """file_read, all at once."""
    return b"".join([piece async for piece in read_pieces(session, path, offset, length)])


async def page(
    session: Session, path: bytes, depth: int = 1, after: bytes | None = None, limit: int = 10_000
) -> tuple[list[files.File], bool]:
    """file_list: the files, and whether there are more."""
    stream = await session.open("file_list", files.FileList(path, None, depth, after, limit), bulk=True, finish=True)
    *pages, last = [guest.decode(event.payload) async for event in stream]
    assert isinstance(last, files.Listed)
    return [file for page in pages if isinstance(page, files.Files) for file in page.files], last.more


async def remove(session: Session, path: bytes, *, recursive: bool = False, missing_ok: bool = False) -> None:
    """file_remove."""
    guest.expect(guest.Done, await session.call("file_remove", files.FileRemove(path, None, recursive, missing_ok)))


@asynccontextmanager
async def watching(session: Session, path: bytes, *, recursive: bool = True) -> AsyncIterator[Stream]:
    """watch, from where nothing is missed."""
    async with await session.open("watch", files.Watch(path, None, recursive), finish=True) as stream:
        guest.expect(files.Watching, (await anext(stream)).payload)
        yield stream


def word(change: files.Change) -> str:
    """A change in short: `kind[/] [from] path`."""
    paths = [change.path] if change.origin is None else [change.origin, change.path]
    return " ".join([change.kind + "/" * change.directory, *(path.decode(errors="replace") for path in paths)])


async def until(stream: Stream, last: str) -> list[str]:
    """What a watch tells, in short, up to the change `last`."""
    found: list[str] = []
    while last not in found:
        found += map(word, guest.expect(files.Changes, (await anext(stream)).payload).changes)
    return found


@asynccontextmanager
async def connected(session: Session, port: int) -> AsyncIterator[Stream]:
    """connect, once the connection stands."""
    async with await session.open("connect", files.Connect(port), bulk=True) as stream:
        guest.expect(files.Connected, (await anext(stream)).payload)
        yield stream


async def exchange(stream: Stream, data: bytes) -> bytes:
    """Send all of it and end; all that comes back meanwhile and after."""

    async def send() -> None:
        await stream.send(data)
        await stream.close()

    sending = asyncio.create_task(send())
    back = b"".join([event.payload async for event in stream])
    await sending
    return back
