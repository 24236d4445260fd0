"""Entries of a SimNode's sandbox (`core.wire.entries`), over its files in memory. Accounts are `user` and `root`, whose home is `/root`."""

from __future__ import annotations

import asyncio
import posixpath
import time
import zlib
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from space.core.wire import entries
from space.core.wire import files as guest
from space.core.wire.guest import Done, expect
from space.model.errors import Conflict, InvalidArgument
from space.rpc.session import Data, Stream

if TYPE_CHECKING:
    from space.testing.simfiles import SimFiles

_HOMES = {None: b"/home/user", "user": b"/home/user", "root": b"/root"}


class SimEntries:
    """The verbs, by name."""

    def __init__(self, files: SimFiles) -> None:
        self._files = files
        self.metadata: dict[bytes, list[entries.Pair]] = {}
        self.verbs: dict[str, Callable[..., Awaitable[None]]] = {
            "entry_stat": self._stat, "entry_list": self._list, "entry_mkdir": self._mkdir, "entry_move": self._move,
            "entry_remove": self._remove, "entry_write": self._write, "entry_watch": self._watch,
        }  # fmt: skip

    def _path(self, path: bytes, user: str | None) -> bytes:
        if user not in _HOMES:
            raise InvalidArgument(f'there is no user "{user}" in the sandbox')
        return b"/" + posixpath.normpath(posixpath.join(_HOMES[user], path)).lstrip(b"/")

    def _entry(self, path: bytes, name: bytes | None = None) -> entries.Entry:
        file = self._files.file(path, name)
        real = self._files.resolve(path)
        leads = None
        if file.kind == "symlink" and real in self._files.inodes:
            there = self._files.inodes[real]
            leads = entries.Leads(real, there.kind, there.mode)
        return entries.Entry(file, path, leads, self.metadata.get(real, []))

    async def _answer(self, stream: Stream, path: bytes) -> None:
        await stream.send_message(entries.EntryAnswer(self._entry(path)))

    async def _stat(self, stream: Stream, asked: entries.EntryStat) -> None:
        await self._answer(stream, self._path(asked.path, asked.user))

    async def _list(self, stream: Stream, asked: entries.EntryList) -> None:
        top = self._path(asked.path, asked.user)
        real = self._files.resolve(top)
        if self._files.must(real).kind != "directory":
            raise InvalidArgument(f"path '{top.decode()}' is not a directory")
        below = real.rstrip(b"/") + b"/"
        names = sorted((path[len(below) :] for path in self._files.inodes if path.startswith(below) and path != real), key=_parts)
        names = [name for name in names if name.count(b"/") < asked.depth]
        found = [self._renamed(below + name, top.rstrip(b"/") + b"/" + name, name) for name in names[: asked.limit]]
        if found:
            await stream.send_message(entries.Entries(found))
        await stream.send_message(guest.Listed(len(names) > asked.limit))

    def _renamed(self, path: bytes, shown: bytes, name: bytes) -> entries.Entry:
        entry = self._entry(path, name)
        return entries.Entry(entry.file, shown, entry.leads, entry.metadata)

    async def _mkdir(self, stream: Stream, asked: entries.EntryMkdir) -> None:
        path = self._path(asked.path, asked.user)
        old = self._files.inodes.get(self._files.resolve(path))
        if old is not None:
            raise Conflict("directory already exists") if old.kind == "directory" else InvalidArgument("path is not a directory")
        self._files.parents(path, make=True)
        self._files.add(path, "directory", 0o755)
        self._files.told("created", path)
        await self._answer(stream, path)

    async def _move(self, stream: Stream, asked: entries.EntryMove) -> None:
        path, to = self._path(asked.path, asked.user), self._path(asked.to, asked.user)
        self._files.must(path)
        self._files.parents(to, make=True)
        self._files.rename(path, to)
        if (kept := self.metadata.pop(path, None)) is not None:
            self.metadata[to] = kept
        await self._answer(stream, to)

    async def _remove(self, stream: Stream, asked: entries.EntryRemove) -> None:
        path = self._path(asked.path, asked.user)
        if path in self._files.inodes:
            self._files.remove(path)
        await stream.send_message(Done())

    async def _write(self, stream: Stream, asked: entries.EntryWrite) -> None:
        path = self._files.resolve(self._path(asked.path, asked.user))
        old = self._files.inodes.get(path)
        if old is not None and old.kind == "directory":
            raise InvalidArgument(f"path '{path.decode()}' is a directory")
        self._files.parents(path, make=True)
        made = self._files.add(path, "file") if old is None else old
        made.data = b""
        made.owner = made.group = asked.user or "user"
        self.metadata[path] = asked.metadata
        if old is None:
            self._files.told("created", path)
        self._files.told("attributes", path)
        content: guest.Content | None = None
        self._files.open_writes += 1
        try:
            async for event in stream:
                if isinstance(event, Data):
                    made.data += event.payload
                else:
                    content = expect(guest.Content, event.payload)
        finally:
            self._files.open_writes -= 1
        if content is None or (content.bytes, content.crc32) != (len(made.data), zlib.crc32(made.data)):
            raise InvalidArgument("what was sent did not arrive whole")
        made.mtime_ns = time.time_ns()
        if made.data:
            self._files.told("modified", path)
        await self._answer(stream, path)

    async def _watch(self, stream: Stream, asked: entries.EntryWatch) -> None:
        path = self._path(asked.path, asked.user)
        if self._files.must(path).kind != "directory":
            raise InvalidArgument(f"path '{path.decode()}' is not a directory")
        queue: asyncio.Queue[guest.Change | None] = asyncio.Queue()
        asks = asyncio.create_task(self._asks(stream, queue))
        try:
            with self._files.watching(path, queue, recursive=asked.recursive):
                await stream.send_message(guest.Watching())
                while True:
                    change = await queue.get()
                    if change is None:
                        await stream.send_message(entries.Synced())
                        continue
                    await stream.send_message(guest.Changes([change]))
                    if change.kind == "deleted" and not change.path:
                        return
        finally:
            asks.cancel()

    @staticmethod
    async def _asks(stream: Stream, queue: asyncio.Queue[guest.Change | None]) -> None:
        """Behind all that has happened stands the answer to who asks for it."""
        async for event in stream:
            for _ in range(len(event.payload)):
                queue.put_nowait(None)


def _parts(path: bytes) -> list[bytes]:
    return path.split(b"/")
