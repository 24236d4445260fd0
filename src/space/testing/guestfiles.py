"""The verbs of files, watches and ports of `FakeGuest` (docs/protocol.md, section 2, "Files") over a temporary directory of this host.

The guest's paths lie below `root`, links included; `/home/user` and `/tmp` are there. `user` (1000) and `root` (0) are the accounts; owners
are remembered, not set, and nobody is refused for want of permission. A watch hears of what this fake's own verbs do, and of what a
test says with `tell`. `connect` reaches `ports`: each guest's port there is a real listener on the loopback; 7 echoes.
"""

from __future__ import annotations

import asyncio
import errno
import itertools
import os
import shutil
import stat
import tempfile
import zlib
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TypeVar

import msgspec

from space.core.wire import files, guest
from space.core.wire.events import Data, Message
from space.model.errors import Conflict, GuestError, InvalidArgument, NoCapacity, NotFound, PermissionDenied, SpaceError, Unsupported
from space.rpc.stream import Stream

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]

R = TypeVar("R", files.FileStat, files.FileMkdir, files.FileMove, files.FileRemove, files.FileChmod, files.FileChown, files.FileSymlink)

_NAMES = {0: "root", 1000: "user"}
_HOMES = {"root": b"/root", "user": b"/home/user"}
_PIECE = 256 << 10
_BATCH = 500
_LINKS = 40
_KINDS: dict[int, files.FileKind] = {
    stat.S_IFREG: "file",
    stat.S_IFDIR: "directory",
    stat.S_IFLNK: "symlink",
    stat.S_IFIFO: "fifo",
    stat.S_IFSOCK: "socket",
    stat.S_IFCHR: "character",
    stat.S_IFBLK: "block",
}
_FAULTS: dict[int, type[SpaceError]] = {
    errno.ENOENT: NotFound,
    **dict.fromkeys((errno.EACCES, errno.EPERM, errno.EROFS), PermissionDenied),
    **dict.fromkeys((errno.EEXIST, errno.ENOTEMPTY, errno.EISDIR, errno.ENOTDIR), Conflict),
    **dict.fromkeys((errno.EINVAL, errno.ENAMETOOLONG, errno.ELOOP), InvalidArgument),
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT), NoCapacity),
    errno.EXDEV: Unsupported,
}


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Send back what comes, then its end."""
    while data := await reader.read(_PIECE):
        writer.write(data)
        await writer.drain()
    writer.write_eof()


@dataclass(eq=False, slots=True)
class _Watch:
    """Whoever waits for changes of a path. changes: None behind the last."""

    path: bytes
    recursive: bool
    changes: asyncio.Queue[files.Change | None] = field(default_factory=asyncio.Queue)

    def below(self, path: bytes) -> bytes | None:
        """The path relative to what is watched; None when it is not."""
        if path == self.path:
            return b""
        base = self.path.rstrip(b"/") + b"/"
        if not path.startswith(base) or (not self.recursive and b"/" in path[len(base) :]):
            return None
        return path[len(base) :]


class FakeFiles:
    """See the module. ports: what listens, by the guest's port. verbs: for `FakeGuest`."""

    def __init__(self) -> None:
        self.ports: dict[int, Handler] = {7: echo}
        self._directory: tempfile.TemporaryDirectory[str] | None = None
        self._owners: dict[int, tuple[int, int]] = {}
        self._watches: set[_Watch] = set()
        self._servers: dict[int, asyncio.Server] = {}
        self.verbs: dict[str, Callable[[Stream, bytes], Awaitable[None]]] = {
            "file_stat": _at_once(files.FileStat, self._stat),
            "file_list": self._list,
            "file_read": self._read,
            "file_write": self._write,
            "file_mkdir": _at_once(files.FileMkdir, self._mkdir),
            "file_move": _at_once(files.FileMove, self._move),
            "file_remove": _at_once(files.FileRemove, self._remove),
            "file_chmod": _at_once(files.FileChmod, self._chmod),
            "file_chown": _at_once(files.FileChown, self._chown),
            "file_symlink": _at_once(files.FileSymlink, self._symlink),
            "watch": self._watch,
            "connect": self._connect,
        }

    @property
    def root(self) -> Path:
        """What the guest calls `/`; made when it is first wanted, removed with this object or by `close`."""
        if self._directory is None:
            self._directory = tempfile.TemporaryDirectory(prefix="space-fake-guest-")
            for name in ("staged", "root/home/user", "root/tmp"):
                Path(self._directory.name, name).mkdir(parents=True)
        return Path(self._directory.name, "root")

    def copy_from(self, other: FakeFiles) -> None:
        """Hold what the other holds now: files, owners, ports that listen."""
        self.ports = dict(other.ports)
        shutil.copytree(other.root, self.root, symlinks=True, dirs_exist_ok=True)
        for theirs in other.root.rglob("*"):
            owner = other._owners.get(theirs.lstat().st_ino)
            if owner is not None:
                self._owners[(self.root / theirs.relative_to(other.root)).lstat().st_ino] = owner

    def close(self) -> None:
        """Remove the directory, close the listeners. Idempotent."""
        for server in self._servers.values():
            server.close()
        self._servers.clear()
        if self._directory is not None:
            self._directory.cleanup()
            self._directory = None

    def tell(self, kind: files.ChangeKind, path: bytes, origin: bytes | None = None, *, directory: bool = False) -> None:
        """Let the watches hear that this happened to an absolute path."""
        for watch in self._watches:
            to, came = watch.below(path), None if origin is None else watch.below(origin)
            if origin is not None and to is not None:
                watch.changes.put_nowait(files.Change("moved" if came is not None else "created", to, came, directory))
            elif to is not None:
                watch.changes.put_nowait(files.Change(kind, to, None, directory))
            elif came is not None:
                watch.changes.put_nowait(files.Change("deleted", came, None, directory))
            if (path == watch.path and kind == "deleted") or origin == watch.path:
                watch.changes.put_nowait(None)

    # Paths

    def _resolve(self, path: bytes, user: str | None, *, follow: bool = True) -> tuple[bytes, Path]:
        """The guest's absolute path without links (the last one is followed only when told so), and where it lies here."""
        if not path or b"\0" in path:
            raise InvalidArgument("path must not be empty or hold NUL bytes")
        if (user or "user") not in _HOMES:
            raise InvalidArgument(f"there is no user {user!r} in the sandbox")
        left = deque((path if path.startswith(b"/") else _HOMES[user or "user"] + b"/" + path).split(b"/"))
        at: list[bytes] = []
        links = 0
        while left:
            part = left.popleft()
            if part == b"..":
                del at[-1:]
            elif part not in (b"", b"."):
                here = self._here([*at, part])
                if (any(left) or follow) and here.is_symlink():
                    links += 1
                    if links > _LINKS:
                        raise InvalidArgument(f"{path!r} leads through more than {_LINKS} links")
                    to = os.fsencode(here.readlink())
                    at = [] if to.startswith(b"/") else at
                    left.extendleft(reversed(to.split(b"/")))
                else:
                    at.append(part)
        return b"/" + b"/".join(at), self._here(at)

    def _here(self, parts: list[bytes]) -> Path:
        return self.root.joinpath(*map(os.fsdecode, parts))

    def _file(self, at: Path, name: bytes) -> files.File:
        found = at.lstat()
        uid, gid = self._owners.get(found.st_ino, (1000, 1000))
        return files.File(
            name=name,
            kind=_KINDS[stat.S_IFMT(found.st_mode)],
            size=found.st_size,
            allocated=found.st_blocks * 512,
            mode=stat.S_IMODE(found.st_mode),
            uid=uid,
            gid=gid,
            owner=_NAMES.get(uid, str(uid)),
            group=_NAMES.get(gid, str(gid)),
            mtime_ns=found.st_mtime_ns,
            inode=found.st_ino,
            links=found.st_nlink,
            target=os.fsencode(at.readlink()) if stat.S_ISLNK(found.st_mode) else None,
        )

    def _made(self, at: Path, user: str | None) -> None:
        """Whose it is."""
        if user == "root":
            self._owners[at.stat().st_ino] = (0, 0)

    # Verbs that answer at once

    def _answer(self, at: Path, path: bytes) -> files.FileAnswer:
        return files.FileAnswer(self._file(at, _base(path)))

    def _stat(self, wanted: files.FileStat) -> files.FileAnswer:
        return self._answer(self._resolve(wanted.path, wanted.user, follow=wanted.follow)[1], wanted.path)

    def _mkdir(self, wanted: files.FileMkdir) -> files.FileAnswer:
        path, at = self._resolve(wanted.path, wanted.user)
        if not (wanted.parents and at.is_dir()):
            if wanted.parents:
                at.parent.mkdir(parents=True, exist_ok=True)
            at.mkdir()
            at.chmod(0o755 if wanted.mode is None else wanted.mode)
            self._made(at, wanted.user)
            self.tell("created", path, directory=True)
        return self._answer(at, wanted.path)

    def _move(self, wanted: files.FileMove) -> files.FileAnswer:
        path, at = self._resolve(wanted.path, wanted.user, follow=False)
        to, target = self._resolve(wanted.to, wanted.user, follow=False)
        directory = stat.S_ISDIR(at.lstat().st_mode)
        if os.path.lexists(target) and not wanted.replace:
            raise Conflict(f"{wanted.to!r} exists")
        at.rename(target)
        self.tell("moved", to, path, directory=directory)
        return self._answer(target, wanted.to)

    def _remove(self, wanted: files.FileRemove) -> guest.Done:
        path, at = self._resolve(wanted.path, wanted.user, follow=False)
        if path == b"/":
            raise InvalidArgument(f"{wanted.path!r} is the root directory")
        directory = at.is_dir() and not at.is_symlink()
        try:
            if not directory:
                at.unlink()
            elif wanted.recursive:
                shutil.rmtree(at)
            else:
                at.rmdir()
        except FileNotFoundError:
            if not wanted.missing_ok:
                raise
        else:
            self.tell("deleted", path, directory=directory)
        return guest.Done()

    def _chmod(self, wanted: files.FileChmod) -> files.FileAnswer:
        path, at = self._resolve(wanted.path, wanted.user)
        for each in _below(at, recursive=wanted.recursive):
            if not each.is_symlink():
                each.chmod(wanted.mode)
        self.tell("attributes", path, directory=at.is_dir())
        return self._answer(at, wanted.path)

    def _chown(self, wanted: files.FileChown) -> files.FileAnswer:
        path, at = self._resolve(wanted.path, wanted.user, follow=False)
        uid, gid = _account(wanted.owner), _account(wanted.group)
        for each in _below(at, recursive=wanted.recursive):
            number = each.lstat().st_ino
            was = self._owners.get(number, (1000, 1000))
            self._owners[number] = (was[0] if uid is None else uid, was[1] if gid is None else gid)
        self.tell("attributes", path, directory=at.is_dir() and not at.is_symlink())
        return self._answer(at, wanted.path)

    def _symlink(self, wanted: files.FileSymlink) -> files.FileAnswer:
        path, at = self._resolve(wanted.path, wanted.user, follow=False)
        if wanted.replace and os.path.lexists(at):
            at.unlink()
        at.symlink_to(os.fsdecode(wanted.target))
        self.tell("created", path)
        return self._answer(at, wanted.path)

    # Verbs that take and send more

    async def _list(self, stream: Stream, request: bytes) -> None:
        wanted = guest.decode_request(files.FileList, request)
        _, at = self._resolve(wanted.path, wanted.user)
        after = None if wanted.after is None else tuple(wanted.after.split(b"/"))
        with _faults("file_list", wanted.path):
            walk = self._walk(at, (), wanted.depth, after)
            page = list(itertools.islice(walk, wanted.limit))
            more = next(walk, None) is not None
        for first in range(0, len(page), _BATCH):
            await stream.send_message(files.Files(page[first : first + _BATCH]))
        await stream.send_message(files.Listed(more))

    def _walk(self, at: Path, prefix: tuple[bytes, ...], depth: int, after: tuple[bytes, ...] | None) -> Iterator[files.File]:
        for here in sorted(at.iterdir(), key=os.fsencode):
            parts = (*prefix, os.fsencode(here.name))
            file = self._file(here, b"/".join(parts))
            if after is None or parts > after:
                yield file
            if file.kind == "directory" and depth > 1 and (after is None or parts >= after[: len(parts)]):
                yield from self._walk(here, parts, depth - 1, after)

    async def _read(self, stream: Stream, request: bytes) -> None:
        wanted = guest.decode_request(files.FileRead, request)
        _, at = self._resolve(wanted.path, wanted.user)
        with _faults("file_read", wanted.path):
            file = self._file(at, _base(wanted.path))
            if file.kind != "file":
                raise Conflict(f"{wanted.path!r} is a {file.kind}, not a regular file")
            source = at.open("rb")
        with source:
            await stream.send_message(files.FileAnswer(file))
            source.seek(min(wanted.offset, file.size))
            left = file.size if wanted.length is None else wanted.length
            count = crc = 0
            while piece := source.read(min(_PIECE, left - count)):
                count, crc = count + len(piece), zlib.crc32(piece, crc)
                await stream.send(piece)
        await stream.send_message(files.Content(count, crc))

    async def _write(self, stream: Stream, request: bytes) -> None:
        wanted = guest.decode_request(files.FileWrite, request)
        path, at = self._resolve(wanted.path, wanted.user)
        with _faults("file_write", wanted.path):
            if wanted.parents:
                at.parent.mkdir(parents=True, exist_ok=True)
            _writable(wanted, at)
        with _staged(self.root.parent / "staged") as target:
            await _take(stream, target.write)
            target.flush()
            with _faults("file_write", wanted.path):
                _writable(wanted, at)
                kind = self._commit(wanted, Path(target.name), at)
                answer = self._answer(at, wanted.path)
        self.tell(kind, path)
        await stream.send_message(answer)

    def _commit(self, wanted: files.FileWrite, staged: Path, at: Path) -> files.ChangeKind:
        old = at.stat() if at.exists() else None
        if wanted.append:
            with staged.open("rb") as source, at.open("ab") as target:
                shutil.copyfileobj(source, target)
        else:
            staged.replace(at)
        mode = wanted.mode
        if mode is None:
            mode = 0o644 if old is None else stat.S_IMODE(old.st_mode)
        at.chmod(mode)
        if old is None:
            self._made(at, wanted.user)
        elif old.st_ino in self._owners:
            self._owners[at.stat().st_ino] = self._owners[old.st_ino]
        return "created" if old is None else "modified"

    async def _watch(self, stream: Stream, request: bytes) -> None:
        wanted = guest.decode_request(files.Watch, request)
        path, at = self._resolve(wanted.path, wanted.user)
        with _faults("watch", wanted.path):
            at.stat()
        watch = _Watch(path, wanted.recursive)
        self._watches.add(watch)
        try:
            await stream.send_message(files.Watching())
            while (change := await watch.changes.get()) is not None:
                batch = [change]
                with suppress(asyncio.QueueEmpty):
                    while len(batch) < _BATCH and (change := watch.changes.get_nowait()) is not None:
                        batch.append(change)
                await stream.send_message(files.Changes(batch))
                if change is None:
                    return
        finally:
            self._watches.discard(watch)

    async def _connect(self, stream: Stream, request: bytes) -> None:
        port = guest.decode_request(files.Connect, request).port
        handler = self.ports.get(port)
        if handler is None:
            raise NotFound(f"nothing listens on port {port} of the sandbox")
        if port not in self._servers:
            self._servers[port] = await asyncio.start_server(handler, "127.0.0.1", 0)
        reader, writer = await asyncio.open_connection(*self._servers[port].sockets[0].getsockname())
        try:
            await stream.send_message(files.Connected())
            async with asyncio.TaskGroup() as both:
                both.create_task(_upload(stream, writer))
                both.create_task(_download(stream, reader))
        except* ConnectionError:
            raise GuestError(f"the connection to port {port} was reset") from None
        finally:
            writer.close()


async def _upload(stream: Stream, writer: asyncio.StreamWriter) -> None:
    async for event in stream:
        writer.write(event.payload)
        await writer.drain()
    writer.write_eof()


async def _download(stream: Stream, reader: asyncio.StreamReader) -> None:
    while data := await reader.read(_PIECE):
        await stream.send(data)
    stream.close_now()


async def _take(stream: Stream, write: Callable[[bytes], object]) -> None:
    """The host's DATA, which must be what its `content` says."""
    count = crc = 0
    told: files.Content | None = None
    async for event in stream:
        match event:
            case Data(_, payload) if told is None:
                count, crc = count + len(payload), zlib.crc32(payload, crc)
                write(payload)
            case Message(_, payload) if told is None:
                told = guest.expect(files.Content, payload)
            case _:
                raise InvalidArgument("something came behind the count of the content")
    if told != files.Content(count, crc):
        raise InvalidArgument(f"{count} bytes with the sum {crc:08x} came, which is not what was sent")


@contextmanager
def _staged(directory: Path) -> Iterator[IO[bytes]]:
    """A file that is gone afterwards, unless it was given another name."""
    with tempfile.NamedTemporaryFile(dir=directory, delete=False) as target:
        try:
            yield target
        finally:
            Path(target.name).unlink(missing_ok=True)


def _writable(wanted: files.FileWrite, at: Path) -> None:
    at.parent.stat()
    if at.is_dir():
        raise Conflict(f"{wanted.path!r} is a directory")
    if wanted.exclusive and os.path.lexists(at):
        raise Conflict(f"{wanted.path!r} exists")


def _below(at: Path, *, recursive: bool) -> list[Path]:
    return [at, *at.rglob("*")] if recursive and not at.is_symlink() else [at]


def _base(path: bytes) -> bytes:
    return path.rstrip(b"/").rpartition(b"/")[2] or b"/"


def _account(name: str | None) -> int | None:
    if name is None or name.isdecimal():
        return None if name is None else int(name)
    for number, known in _NAMES.items():
        if name == known:
            return number
    raise InvalidArgument(f"there is no account {name!r} in the sandbox")


@contextmanager
def _faults(verb: str, path: bytes) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        kind = _FAULTS.get(error.errno or 0, GuestError)
        raise kind(f"{verb}: {path!r}: {error.strerror}") from error


def _at_once(kind: type[R], act: Callable[[R], msgspec.Struct]) -> Callable[[Stream, bytes], Awaitable[None]]:
    async def verb(stream: Stream, request: bytes) -> None:
        wanted = guest.decode_request(kind, request)
        with _faults(stream.verb, wanted.path):
            answer = act(wanted)
        await stream.send_message(answer)

    return verb
