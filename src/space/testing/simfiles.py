"""Files, watches and ports of a SimNode's sandbox, in memory: enough of a file system to see what control asks for and passes on.

Paths are normal forms of bytes below `/home/user`. Everybody may do everything, except below `/proc` (permission denied).
Port 7 gives back what it gets, 9 takes and says nothing, 13 says the time and ends its direction, then counts what it still gets.
"""

from __future__ import annotations

import asyncio
import posixpath
import time
import zlib
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from space.core.wire import files as guest
from space.core.wire.guest import REQUESTS, Done, decode_request, expect
from space.model.errors import Conflict, NotFound, PermissionDenied
from space.rpc.session import Data, Stream
from space.testing.simentries import SimEntries

HOME = b"/home/user"
_PIECE = 64 * 1024


@dataclass(slots=True)
class Inode:
    """A file, a directory or a link. hidden_size: it says 0, as files of /proc do."""

    number: int
    kind: guest.FileKind
    data: bytes = b""
    mode: int = 0o644
    owner: str = "user"
    group: str = "user"
    mtime_ns: int = field(default_factory=time.time_ns)
    target: bytes | None = None
    hidden_size: bool = False


class SimFiles:
    """One sandbox's. Failures are attributes."""

    def __init__(self) -> None:
        self.inodes: dict[bytes, Inode] = {}
        self.lie = False  # about what was sent
        self.cut_after: int | None = None  # a read is reset after so many bytes
        self.grow_by = 0  # the file is longer than it says when it is read
        self.open_writes = 0
        self.opened = 0  # connections to ports that are open
        self.got_after_eof = b""  # what port 13 got
        self._number = 1
        self.entries = SimEntries(self)
        self._watches: set[tuple[bytes, bool, asyncio.Queue[guest.Change | None]]] = set()
        for path in (b"/", b"/home", HOME, b"/tmp"):
            self.add(path, "directory", 0o755)

    def add(self, path: bytes, kind: guest.FileKind, mode: int = 0o644) -> Inode:
        self._number += 1
        self.inodes[path] = made = Inode(self._number, kind, mode=mode)
        return made

    def copy(self) -> SimFiles:
        """The same files, apart from now on."""
        made = SimFiles()
        made.inodes = {path: replace(inode) for path, inode in self.inodes.items()}
        made._number = self._number
        return made

    # -- the verbs ----------------------------------------------------------------------------------------------------

    async def run(self, stream: Stream, verb: str, request: bytes) -> None:
        """A guest's verb, on its own stream."""
        handlers: dict[str, Callable[..., Awaitable[None]]] = {
            "file_stat": self._stat, "file_list": self._list, "file_read": self._read, "file_write": self._write,
            "file_mkdir": self._mkdir, "file_move": self._move, "file_remove": self._remove, "file_chmod": self._chmod,
            "file_chown": self._chown, "file_symlink": self._symlink, "watch": self._watch, "connect": self._connect,
            **self.entries.verbs,
        }  # fmt: skip
        await handlers[verb](stream, decode_request(REQUESTS[verb], request))

    async def _stat(self, stream: Stream, asked: guest.FileStat) -> None:
        path = self._path(asked.path)
        await self._answer(stream, self.resolve(path) if asked.follow else path)

    async def _list(self, stream: Stream, asked: guest.FileList) -> None:
        top = self.resolve(self._path(asked.path))
        self.must(top, "directory")
        below = top.rstrip(b"/") + b"/"
        names = sorted((path[len(below) :] for path in self.inodes if path.startswith(below) and path != top), key=lambda n: n.split(b"/"))
        names = [name for name in names if name.count(b"/") < asked.depth]
        if asked.after is not None:
            names = [name for name in names if name.split(b"/") > asked.after.split(b"/")]
        for at in range(0, min(asked.limit, len(names)), 100):
            page = names[at : min(at + 100, asked.limit)]
            await stream.send_message(guest.Files([self.file(below + name, name) for name in page]))
        await stream.send_message(guest.Listed(len(names) > asked.limit))

    async def _read(self, stream: Stream, asked: guest.FileRead) -> None:
        path = self.resolve(self._path(asked.path))
        found = self.must(path, "file")
        await self._answer(stream, path)
        data = found.data + b"+" * self.grow_by
        data = data[asked.offset :] if asked.length is None else data[asked.offset : asked.offset + asked.length]
        for at in range(0, len(data), _PIECE):
            if self.cut_after is not None and at >= self.cut_after:
                raise Conflict("the disk went away")
            await stream.send(data[at : at + _PIECE])
        await stream.send_message(guest.Content(len(data), zlib.crc32(data) ^ self.lie))

    async def _write(self, stream: Stream, asked: guest.FileWrite) -> None:
        path = self.resolve(self._path(asked.path))
        old = self.inodes.get(path)
        if old is not None and (asked.exclusive or old.kind == "directory"):
            raise Conflict(f"{path!r} exists" if asked.exclusive else f"{path!r} is a directory")
        self.parents(path, make=asked.parents)
        taken = bytearray()
        content: guest.Content | None = None
        self.open_writes += 1
        try:
            async for event in stream:
                if isinstance(event, Data):
                    taken += event.payload
                else:
                    content = expect(guest.Content, event.payload)
        finally:
            self.open_writes -= 1
        if content is None or (content.bytes, content.crc32) != (len(taken), zlib.crc32(taken)):
            raise Conflict("what was sent did not arrive whole")
        made = old if old is not None and asked.append else self.add(path, "file", 0o644 if old is None else old.mode)
        made.data = made.data + bytes(taken) if asked.append else bytes(taken)
        made.mtime_ns = time.time_ns()
        if asked.mode is not None:
            made.mode = asked.mode
        self.told("created" if old is None else "modified", path)
        await self._answer(stream, path)

    async def _mkdir(self, stream: Stream, asked: guest.FileMkdir) -> None:
        path = self._path(asked.path)
        old = self.inodes.get(path)
        if old is not None and not (asked.parents and old.kind == "directory"):
            raise Conflict(f"{path!r} exists")
        self.parents(path, make=asked.parents)
        if old is None:
            self.add(path, "directory", 0o755 if asked.mode is None else asked.mode)
            self.told("created", path)
        await self._answer(stream, path)

    async def _move(self, stream: Stream, asked: guest.FileMove) -> None:
        path, to = self._path(asked.path), self._path(asked.to)
        self.must(path)
        self.parents(to, make=False)
        if to in self.inodes and not asked.replace:
            raise Conflict(f"{to!r} exists")
        self.rename(path, to)
        await self._answer(stream, to)

    def rename(self, path: bytes, to: bytes) -> None:
        """With everything below."""
        for old in self._tree(path):
            self.inodes[to + old[len(path) :]] = self.inodes.pop(old)
        self.told("moved", to, path)

    async def _remove(self, stream: Stream, asked: guest.FileRemove) -> None:
        path = self._path(asked.path)
        if path in self.inodes or not asked.missing_ok:
            self.must(path)
            tree = self._tree(path)
            if len(tree) > 1 and not asked.recursive:
                raise Conflict(f"{path!r} is not empty")
            self.remove(path)
        await stream.send_message(Done())

    def remove(self, path: bytes) -> None:
        """With everything below."""
        for one in self._tree(path):
            del self.inodes[one]
        self.told("deleted", path)

    async def _chmod(self, stream: Stream, asked: guest.FileChmod) -> None:
        await self._each(stream, asked.path, asked.recursive, lambda found: setattr(found, "mode", asked.mode))

    async def _chown(self, stream: Stream, asked: guest.FileChown) -> None:
        def change(found: Inode) -> None:
            found.owner, found.group = asked.owner or found.owner, asked.group or found.group

        await self._each(stream, asked.path, asked.recursive, change)

    async def _each(self, stream: Stream, given: bytes, recursive: bool, change: Callable[[Inode], None]) -> None:
        path = self._path(given)
        self.must(path)
        for one in self._tree(path) if recursive else [path]:
            change(self.inodes[one])
            self.told("attributes", one)
        await self._answer(stream, path)

    async def _symlink(self, stream: Stream, asked: guest.FileSymlink) -> None:
        path = self._path(asked.path)
        if path in self.inodes and not asked.replace:
            raise Conflict(f"{path!r} exists")
        self.parents(path, make=False)
        self.add(path, "symlink", 0o777).target = asked.target
        self.told("created", path)
        await self._answer(stream, path)

    async def _watch(self, stream: Stream, asked: guest.Watch) -> None:
        path = self._path(asked.path)
        self.must(path)
        queue: asyncio.Queue[guest.Change | None] = asyncio.Queue()
        with self.watching(path, queue, recursive=asked.recursive):
            await stream.send_message(guest.Watching())
            while True:
                change = await queue.get()
                if change is None:
                    await stream.send_message(guest.Overflow())
                    continue
                await stream.send_message(guest.Changes([change]))
                if change.kind == "deleted" and not change.path:
                    return

    @property
    def watched(self) -> int:
        """Watches that are open."""
        return len(self._watches)

    @contextmanager
    def watching(self, path: bytes, queue: asyncio.Queue[guest.Change | None], *, recursive: bool) -> Iterator[None]:
        """Have the queue told of what happens there."""
        entry = (path, recursive, queue)
        self._watches.add(entry)
        try:
            yield
        finally:
            self._watches.discard(entry)

    def overflow(self) -> None:
        """Every watch has lost something."""
        for _, _, queue in self._watches:
            queue.put_nowait(None)

    async def _connect(self, stream: Stream, asked: guest.Connect) -> None:
        if asked.port not in (7, 9, 13, 80):
            raise NotFound(f"nothing listens on port {asked.port}")
        await stream.send_message(guest.Connected())
        self.opened += 1
        try:
            if asked.port == 13:
                await stream.send(b"12:00:00\n")
                await stream.close()
            async for event in stream:
                if asked.port == 7:
                    await stream.send(event.payload)
                elif asked.port == 80 and event.payload.endswith(b"\r\n\r\n"):  # a web server of requests that come in one piece
                    self.got_after_eof += event.payload
                    await stream.send(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
                elif asked.port == 13:
                    self.got_after_eof += event.payload
        finally:
            self.opened -= 1

    # -- small things -------------------------------------------------------------------------------------------------

    def _path(self, given: bytes) -> bytes:
        path = posixpath.normpath(posixpath.join(HOME, given))
        if path.startswith(b"/proc/"):
            raise PermissionDenied(f"{path!r} is not yours")
        return b"/" + path.lstrip(b"/")

    def resolve(self, path: bytes) -> bytes:
        for _ in range(8):
            found = self.inodes.get(path)
            if found is None or found.target is None:
                return path
            path = posixpath.normpath(posixpath.join(posixpath.dirname(path), found.target))
        raise Conflict("too many links")

    def must(self, path: bytes, kind: str | None = None) -> Inode:
        found = self.inodes.get(path)
        if found is None:
            raise NotFound(f"there is no {path.decode('utf-8', 'backslashreplace')}")
        if kind is not None and found.kind != kind:
            raise Conflict(f"{path.decode('utf-8', 'backslashreplace')} is a {found.kind}, no {kind}")
        return found

    def parents(self, path: bytes, *, make: bool) -> None:
        parent = posixpath.dirname(path)
        if parent not in self.inodes and make:
            self.parents(parent, make=True)
            self.add(parent, "directory", 0o755)
        self.must(parent, "directory")

    def _tree(self, path: bytes) -> list[bytes]:
        return [path, *(one for one in self.inodes if one.startswith(path.rstrip(b"/") + b"/"))]

    def file(self, path: bytes, name: bytes | None = None) -> guest.File:
        found = self.must(path)
        size = 0 if found.hidden_size else len(found.data)
        shown = posixpath.basename(path) if name is None else name
        return guest.File(
            shown, found.kind, size, -(-size // 4096) * 4096, found.mode, 1000, 1000, found.owner, found.group, found.mtime_ns,
            found.number, 1, found.target,
        )  # fmt: skip

    async def _answer(self, stream: Stream, path: bytes) -> None:
        await stream.send_message(guest.FileAnswer(self.file(path)))

    def told(self, kind: guest.ChangeKind, path: bytes, origin: bytes | None = None) -> None:
        directory = path in self.inodes and self.inodes[path].kind == "directory"
        for top, recursive, queue in self._watches:
            name = _below(top, path, recursive=recursive)
            if name is not None:
                came = None if origin is None else _below(top, origin, recursive=recursive)
                queue.put_nowait(guest.Change(kind, name, came, directory))


def _below(top: bytes, path: bytes, *, recursive: bool) -> bytes | None:
    if path == top:
        return b""
    if not path.startswith(top.rstrip(b"/") + b"/"):
        return None
    name = path[len(top.rstrip(b"/")) + 1 :]
    return name if recursive or b"/" not in name else None


def verbs() -> Iterable[str]:
    """Those that a SimNode passes on."""
    return (verb for verb in REQUESTS if verb.startswith(("file_", "entry_")) or verb in ("watch", "connect"))
