"""Unpacking a tree that came from a guest, which may have built it to harm whoever unpacks it.

A tree goes into a fresh staging directory beside its destination and is renamed into place when all of it was accepted: a refused or
cut-off archive leaves nothing. Each directory on the way is opened from its parent's descriptor without following links.
Symbolic links are made last, when all of them are known and each is proved to stay inside; so nothing is ever written through one.
Owners are not kept; modes lose set-id bits and write permission for others; no device, FIFO or socket is made.
"""

from __future__ import annotations

import itertools
import os
import stat
import sys
import tempfile
import unicodedata
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

from space.model.errors import Conflict, InvalidArgument, UnsafeArchive
from space.sdk.sparse import Hole
from space.sdk.tarstream import Entry, EntryKind, TarReader, shown

_OPEN_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_MAX_EXPANSIONS = 40
_MAX_DEPTH = 256  # each level of a name costs a directory, and a step of whoever walks the tree later
_LATEST = 1 << 40  # seconds; file systems refuse later times

Links = Literal["refuse", "skip"]
Name = tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Limits:
    """What is accepted of one tree: entries (directories that names imply count), bytes of file data in all, bytes of a name."""

    entries: int = 500_000
    total_bytes: int = 16 << 30
    name_bytes: int = 4096


@dataclass(frozen=True, slots=True)
class Unpacked:
    """What was unpacked. skipped: links that lead out, as far as they were to be skipped."""

    entries: int
    bytes: int
    skipped: tuple[str, ...] = ()


def checked_name(raw: bytes, limits: Limits) -> Name:
    """An entry's name as components; the root is (). UnsafeArchive for an absolute name, `..`, NUL or too long a name."""
    if len(raw) > limits.name_bytes:
        raise UnsafeArchive(f"entry {shown(raw)} has a name of {len(raw)} bytes", hint=f"at most {limits.name_bytes} are accepted")
    if raw.startswith(b"/"):
        raise UnsafeArchive(f"entry {shown(raw)} has an absolute name")
    if b"\0" in raw:
        raise UnsafeArchive(f"entry {shown(raw)} has a NUL in its name")
    parts = tuple(part for part in raw.split(b"/") if part not in (b"", b"."))
    if b".." in parts:
        raise UnsafeArchive(f"entry {shown(raw)} goes up with '..'")
    if any(len(part) > 255 for part in parts):
        raise UnsafeArchive(f"entry {shown(raw)} has a component longer than 255 bytes")
    if len(parts) > _MAX_DEPTH:
        raise UnsafeArchive(f"entry {shown(raw)} lies {len(parts)} levels deep", hint=f"at most {_MAX_DEPTH} are accepted")
    return parts


def leads_out(link: Name, links: dict[Name, bytes]) -> bool:
    """Whether following `link` leaves the tree, when the tree's links are `links` (so does a
    loop: the kernel stops in it, but tools that resolve names themselves may not).
    """
    here = list(link[:-1])
    pending = [links[link]]
    parts: list[bytes] = []
    for _ in range(_MAX_EXPANSIONS):
        target = pending.pop()
        if target.startswith(b"/"):
            return True
        parts = target.split(b"/") + parts
        while parts:
            part = parts.pop(0)
            if part == b"..":
                if not here:
                    return True
                here.pop()
            elif part not in (b"", b"."):
                here.append(part)
                if len(here) > _MAX_DEPTH:
                    return True  # no such place is in the tree, and a long target would make the proof slow
                if (folded := _folded(tuple(here))) in links:
                    here.pop()
                    pending.append(links[folded])
                    break
        else:
            return False
    return True


def _folded(name: Name) -> Name:
    """The name as the file system compares it: Linux by bytes, macOS without regard to case and composition."""
    if sys.platform != "darwin":
        return name
    return tuple(unicodedata.normalize("NFKD", part.decode("utf-8", "replace").casefold()).encode() for part in name)


class Staging:
    """A tree on its way: a context manager. `receive` the stream, then `commit` to its place; without that it is removed."""

    def __init__(self, beside: Path, *, limits: Limits | None = None, links: Links = "refuse") -> None:
        self._beside = beside
        self._limits = limits or Limits()
        self._leading_out = links
        self._reader = TarReader()
        self._stack = ExitStack()
        self._entries = 0
        self._implied = 0
        self._bytes = 0
        self._is_tree = False
        self._kinds: dict[Name, EntryKind] = {}
        self._links: dict[Name, tuple[Name, bytes]] = {}  # by folded name: the name as written, and the target
        self._directories: list[tuple[Name, int, int]] = []
        self._file: int | None = None
        self._left = 0
        self._current: Entry | None = None

    def __enter__(self) -> Self:
        try:
            self._path = Path(tempfile.mkdtemp(prefix=".space-", dir=self._beside))
        except OSError as error:
            raise InvalidArgument(f"cannot unpack into {self._beside}: {error.strerror}") from error
        self._stack.callback(remove_tree, self._path)
        (self._path / "tree").mkdir()
        self._root = os.open(self._path / "tree", _OPEN_DIRECTORY)
        self._stack.callback(os.close, self._root)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._close_file()
        self._stack.close()

    def receive(self, data: bytes) -> None:
        """Take more of the stream. UnsafeArchive names the entry that is refused."""
        for event in self._reader.receive(data):
            if isinstance(event, Entry):
                self._begin(event)
            elif isinstance(event, Hole):
                self._pass_over(event.bytes)
            else:
                self._write(event)

    def commit(self, target: Path, *, replace: bool = False) -> Unpacked:
        """Prove the end of the stream, make the links, move what came to `target`. Conflict when something is in the way."""
        self._reader.finish()
        skipped = self._make_links()
        self._finish_directories()
        if not self._entries:
            raise UnsafeArchive("the archive is empty")
        if self._is_tree:
            self._move(self._path / "tree", target, replace=replace)
        else:
            ((name, _),) = self._kinds.items()
            self._move(self._path / "tree" / os.fsdecode(name[0]), target, replace=replace)
        return Unpacked(self._entries, self._bytes, skipped)

    def _begin(self, entry: Entry) -> None:
        self._entries += 1
        self._bytes += entry.size
        self._check_count(entry)
        if self._bytes > self._limits.total_bytes:
            raise UnsafeArchive(f"entry {shown(entry.name)} takes the tree past {self._limits.total_bytes} bytes")
        name = checked_name(entry.name, self._limits)
        if self._entries == 1:
            self._is_tree = entry.name.startswith(b"./") or not name or entry.kind is EntryKind.DIRECTORY or len(name) > 1
        elif not self._is_tree:
            raise UnsafeArchive(f"entry {shown(entry.name)} follows what was a single file")
        self._current = entry
        try:
            self._make(name, entry)
        except OSError as error:
            raise UnsafeArchive(f"entry {shown(entry.name)} cannot be made: {error.strerror}") from error

    def _check_count(self, entry: Entry) -> None:
        if self._entries + self._implied > self._limits.entries:
            raise UnsafeArchive(f"entry {shown(entry.name)} is one more than the {self._limits.entries} that are accepted")

    def _make(self, name: Name, entry: Entry) -> None:
        if entry.kind is EntryKind.DIRECTORY:
            os.close(self._open_directory(name, entry))
            self._directories.append((name, entry.mode, entry.mtime))
            return
        if not name or _folded(name) in self._kinds:
            raise UnsafeArchive(f"entry {shown(entry.name)} comes twice, or in the place of a directory")
        parent = self._open_directory(name[:-1], entry)
        try:
            self._kinds[_folded(name)] = entry.kind
            match entry.kind:
                case EntryKind.FILE:
                    self._file = os.open(name[-1], _CREATE, 0o600, dir_fd=parent)
                    self._left = entry.size
                    if not entry.size:
                        self._close_file()
                case EntryKind.SYMLINK:
                    if not entry.target or b"\0" in entry.target:
                        raise UnsafeArchive(f"entry {shown(entry.name)} is a link to nothing")
                    if len(entry.target) > self._limits.name_bytes:
                        raise UnsafeArchive(f"entry {shown(entry.name)} is a link to a name of {len(entry.target)} bytes")
                    self._links[_folded(name)] = (name, entry.target)
                case EntryKind.HARDLINK:
                    self._hard_link(name, parent, entry)
        finally:
            os.close(parent)

    def _hard_link(self, name: Name, parent: int, entry: Entry) -> None:
        source = checked_name(entry.target, self._limits)
        if self._kinds.get(_folded(source)) not in (EntryKind.FILE, EntryKind.HARDLINK):
            raise UnsafeArchive(f"entry {shown(entry.name)} is a hard link to {shown(entry.target)}, which is no file of the archive")
        where = self._open_directory(source[:-1], entry)
        try:
            os.link(source[-1], name[-1], src_dir_fd=where, dst_dir_fd=parent, follow_symlinks=False)
        finally:
            os.close(where)

    def _open_directory(self, name: Name, entry: Entry) -> int:
        """A descriptor of that directory, made where missing. Owned by the caller."""
        here = os.dup(self._root)
        for depth, part in enumerate(name, 1):
            known = self._kinds.get(_folded(name[:depth]))
            try:
                if known is None:
                    if depth < len(name) or entry.kind is not EntryKind.DIRECTORY:
                        self._implied += 1
                        self._check_count(entry)
                    os.mkdir(part, 0o755, dir_fd=here)
                    self._kinds[_folded(name[:depth])] = EntryKind.DIRECTORY
                elif known is not EntryKind.DIRECTORY:
                    raise UnsafeArchive(f"entry {shown(entry.name)} goes through a {known.value}")
                deeper = os.open(part, _OPEN_DIRECTORY, dir_fd=here)
            finally:
                os.close(here)
            here = deeper
        return here

    def _write(self, data: bytes) -> None:
        assert self._file is not None
        view = memoryview(data)
        while view:
            view = view[os.write(self._file, view) :]
        self._left -= len(data)
        if not self._left:
            self._close_file()

    def _pass_over(self, count: int) -> None:
        assert self._file is not None
        assert self._current is not None
        self._left -= count
        try:
            os.lseek(self._file, count, os.SEEK_CUR)
            if not self._left:
                os.ftruncate(self._file, self._current.size)
        except OSError as error:
            raise UnsafeArchive(f"entry {shown(self._current.name)} cannot be made: {error.strerror}") from error
        if not self._left:
            self._close_file()

    def _close_file(self) -> None:
        if self._file is None:
            return
        descriptor, self._file = self._file, None
        assert self._current is not None
        try:
            if not self._left:
                os.fchmod(descriptor, self._current.mode & 0o755 | 0o600)
                moment = min(self._current.mtime, _LATEST)
                os.utime(descriptor, (moment, moment))
        finally:
            os.close(descriptor)

    def _make_links(self) -> tuple[str, ...]:
        targets = {folded: target for folded, (_, target) in self._links.items()}
        skipped = []
        for folded, (name, target) in self._links.items():
            if leads_out(folded, targets):
                if self._leading_out == "refuse":
                    raise UnsafeArchive(
                        f"entry {shown(b'/'.join(name))} is a symbolic link out of the tree or in circles, to {shown(target)}",
                        hint='links="skip" leaves such links out',
                    )
                skipped.append(os.fsdecode(b"/".join(name)))
        for name, target in self._links.values():
            if os.fsdecode(b"/".join(name)) in skipped:
                continue
            parent = self._open_directory(name[:-1], Entry(b"/".join(name), EntryKind.SYMLINK, target, 0, 0, 0))
            try:
                os.symlink(target, name[-1], dir_fd=parent)
            except OSError as error:
                raise UnsafeArchive(f"entry {shown(b'/'.join(name))} cannot be made: {error.strerror}") from error
            finally:
                os.close(parent)
        return tuple(skipped)

    def _finish_directories(self) -> None:
        """Modes and times, the deepest first: a directory's time changes with each entry made in it."""
        for name, mode, mtime in sorted(self._directories, key=lambda item: -len(item[0])):
            descriptor = self._open_directory(name, Entry(b"/".join(name), EntryKind.DIRECTORY, b"", 0, mode, mtime))
            try:
                os.fchmod(descriptor, mode & 0o755 | 0o700)
                os.utime(descriptor, (min(mtime, _LATEST), min(mtime, _LATEST)))
            finally:
                os.close(descriptor)

    def _move(self, source: Path, target: Path, *, replace: bool) -> None:
        there = target.is_symlink() or target.exists()
        if there and not (target.is_symlink() or target.is_file() or target.is_dir()):
            # /dev/null, say: a name that the whole machine uses must not become a file
            raise Conflict(f"{target} is a device, a pipe or a socket, which is never replaced", hint="choose another name")
        is_file = not (source.is_dir() and not source.is_symlink())
        if there and is_file and target.is_dir() and not target.is_symlink():
            raise Conflict(f"{target} is a directory, which a file never replaces", hint="choose another name")
        if there and not replace and not (is_file and not target.is_dir()):
            raise Conflict(f"{target} is there already", hint="choose another name, or replace it (--replace, replace=True)")
        if there and (target.is_dir() and not target.is_symlink()):
            target.rename(self._path / "replaced")
        elif there and not is_file:
            target.unlink()
        try:
            source.rename(target)
        except OSError as error:
            with suppress(OSError):
                (self._path / "replaced").rename(target)
            raise InvalidArgument(f"cannot move the tree to {target}: {error.strerror}") from error


def unpack(
    stream: Iterable[bytes], target: Path, *, limits: Limits | None = None, links: Links = "refuse", replace: bool = False
) -> Unpacked:
    """Unpack a tar stream that is not trusted to `target`, which is the file's or directory's own new name.

    Raises UnsafeArchive, StreamCut, Conflict (something is there; a file replaces a file), InvalidArgument (no such directory).
    """
    with Staging(target.parent, limits=limits, links=links) as staging:
        for data in stream:
            staging.receive(data)
        return staging.commit(target, replace=replace)


def remove_tree(root: Path) -> None:
    """Remove a directory of ours with all in it, as far as that can be done; links are not followed.

    Each directory inside is first moved up to `root`: no depth, and no name longer than a system call takes, is in the way.
    """
    names = (f".space-remove-{number}" for number in itertools.count())
    with suppress(OSError):
        top = os.open(root, _OPEN_DIRECTORY)
        try:
            pending = _emptied(top, top, names)
            while pending:
                name = pending.pop()
                with suppress(OSError):
                    here = os.open(name, _OPEN_DIRECTORY, dir_fd=top)
                    try:
                        pending += _emptied(here, top, names)
                    finally:
                        os.close(here)
                    os.rmdir(name, dir_fd=top)
        finally:
            os.close(top)
        root.rmdir()


def _emptied(here: int, top: int, names: Iterator[str]) -> list[str]:
    """Empty a directory: its files are removed, its directories moved to `top`, under the names that are returned."""
    moved = []
    for name in os.listdir(here):
        with suppress(OSError):
            if not stat.S_ISDIR(os.stat(name, dir_fd=here, follow_symlinks=False).st_mode):
                os.unlink(name, dir_fd=here)
                continue
            os.chmod(name, 0o700, dir_fd=here)  # a directory that may not be written cannot be moved or emptied
            above = next(names)
            os.rename(name, above, src_dir_fd=here, dst_dir_fd=top)
            moved.append(above)
    return moved
