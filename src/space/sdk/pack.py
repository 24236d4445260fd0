"""A local file or tree as one tar stream, made while it is read: nothing is gathered in memory or on disk.

Names are bytes, whatever their encoding; symbolic links stay links; modes and times go along; owners do not (the guest's user owns
what it unpacks); the holes of files stay holes (`sparse`). A directory's entries are named relative to it (`./...`), a file is one entry.
"""

from __future__ import annotations

import os
import stat
import tarfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import IO

from space.model.errors import InvalidArgument
from space.sdk import sparse

CHUNK = 256 << 10
Exclude = Iterable[str] | Callable[[str], bool]


def pack(source: Path, *, name: str | None = None, exclude: Exclude = ()) -> Iterator[bytes]:
    """The tar stream of `source`, in pieces of about 256 KiB.

    name: of the entry, when `source` is a file (its own by default). exclude: patterns as of a shell, matched against a path
    relative to `source` and against a last component (an excluded directory is not entered), or a function of that path.
    Raises InvalidArgument for what is not there, cannot be read, changed while it was read, or is a device, FIFO or socket.
    """
    skips = exclude if callable(exclude) else matcher(tuple(exclude))
    pending = bytearray()
    try:
        for piece in _pieces(source, name, skips):
            pending += piece
            if len(pending) >= CHUNK:
                yield bytes(pending)
                pending.clear()
    except OSError as error:
        raise InvalidArgument(f"cannot read {error.filename or source}: {error.strerror}") from error
    yield bytes(pending) + bytes(2 * tarfile.BLOCKSIZE)


def matcher(patterns: tuple[str, ...]) -> Callable[[str], bool]:
    """Whether a path, or its last component, matches one of these patterns."""

    def skips(path: str) -> bool:
        last = path.rsplit("/", 1)[-1]
        return any(fnmatch(path, pattern) or fnmatch(last, pattern) for pattern in patterns)

    return skips


def _pieces(source: Path, name: str | None, skips: Callable[[str], bool]) -> Iterator[bytes]:
    top = source.stat()
    if not stat.S_ISDIR(top.st_mode):
        yield from _entry(os.fspath(source), name or source.name, top)
        return
    yield _header(".", top)
    stack = [("", os.fspath(source))]
    while stack:
        relative, directory = stack.pop()
        with os.scandir(directory) as found:
            entries = sorted(found, key=lambda entry: entry.name)
        deeper = []
        for entry in entries:
            path = f"{relative}{entry.name}"
            if skips(path):
                continue
            status = entry.stat(follow_symlinks=False)
            yield from _entry(entry.path, f"./{path}", status)
            if stat.S_ISDIR(status.st_mode):
                deeper.append((f"{path}/", entry.path))
        stack += reversed(deeper)


def _entry(path: str, name: str, status: os.stat_result) -> Iterator[bytes]:
    mode = status.st_mode
    if stat.S_ISDIR(mode):
        yield _header(name, status)
    elif stat.S_ISLNK(mode):
        yield _header(name, status, target=os.readlink(path))  # noqa: PTH115  # Path would tidy the target up
    elif stat.S_ISREG(mode):
        # Without following and without waiting: what was a file a moment ago may be a link or a FIFO now.
        with os.fdopen(
            os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | (0 if "/" not in name else os.O_NOFOLLOW)), "rb", 0
        ) as file:
            status = os.fstat(file.fileno())
            found = sparse.segments(file.fileno(), status)
            if found is not None:
                yield from _sparse(file, name, status, found, path)
                return
            file.seek(0)
            yield _header(name, status)
            yield from _data(file, status.st_size, path)
            yield bytes(-status.st_size % tarfile.BLOCKSIZE)
    else:
        raise InvalidArgument(f"{path!r} is a device, FIFO or socket, which cannot be sent", hint="exclude it")


def _header(name: str, status: os.stat_result, target: str = "") -> bytes:
    info = _info(name, status)
    if target:
        info.type, info.linkname = tarfile.SYMTYPE, target
    elif stat.S_ISDIR(status.st_mode):
        info.type = tarfile.DIRTYPE
    else:
        info.size = status.st_size
    return info.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")


def _info(name: str, status: os.stat_result) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.mode = stat.S_IMODE(status.st_mode)
    info.mtime = max(0, int(status.st_mtime))  # whole seconds: a fraction would cost a pax header an entry
    return info


def _data(file: IO[bytes], size: int, path: str) -> Iterator[bytes]:
    left = size
    while left:
        piece = file.read(min(CHUNK, left))
        if not piece:
            raise InvalidArgument(f"{path!r} became shorter while it was read", hint="repeat when nobody writes to it")
        left -= len(piece)
        yield piece


def _sparse(file: IO[bytes], name: str, status: os.stat_result, found: Sequence[sparse.Segment], path: str) -> Iterator[bytes]:
    """A file with holes: what is not one."""
    content = sparse.map_of(found)
    info = _info(_sparse_name(name), status)
    info.size = len(content) + sum(segment.length for segment in found)
    info.pax_headers = sparse.records(name, status.st_size)
    yield info.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape") + content
    for segment in found:
        file.seek(segment.at)
        yield from _data(file, segment.length, path)
    yield bytes(-info.size % tarfile.BLOCKSIZE)


def _sparse_name(name: str) -> str:
    """What the file is called by who does not know of holes.

    ASCII and short: another name would need a record of its own, which Python's reader prefers to the sparse one.
    """
    return "GNUSparseFile.0/" + name.rsplit("/", 1)[-1].encode("ascii", "replace").decode()[:80]
