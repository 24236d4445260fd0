"""Files below a held directory: opened without leaving it, written by staging and renaming, copied by sharing blocks."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from space.host import syscalls

_BENEATH = syscalls.RESOLVE_BENEATH | syscalls.RESOLVE_NO_SYMLINKS | syscalls.RESOLVE_NO_MAGICLINKS
_CHUNK = 1 << 30
_NO_REFLINK = {errno.EOPNOTSUPP, errno.EXDEV, errno.ENOTTY, errno.EINVAL, errno.ENOSYS}


def open_beneath(directory: int, path: str, flags: int, mode: int = 0) -> int:
    """Open `path` below `directory`: no symbolic link on the way, no `..` out of it, no other file system's magic."""
    return syscalls.openat2(directory, path, flags, mode=mode, resolve=_BENEATH)


def open_directory(path: str | os.PathLike[str], *, inside: int | None = None) -> int:
    """A descriptor of a directory to work below. One that is not `inside` another is the operator's own, and may be a link."""
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
    if inside is None:
        return os.open(path, flags)
    return open_beneath(inside, os.fspath(path), flags)


def close_all_but(kept: set[int]) -> None:
    """Close every descriptor but the three standard ones and these, in a process that was forked and has work of its own."""
    last = 2
    for number in sorted(kept - {0, 1, 2}):
        os.closerange(last + 1, number)
        last = number
    os.closerange(last + 1, 1 << 20)


def keep_only(kept: tuple[int, ...]) -> tuple[int, ...]:
    """As `close_all_but`, and the new numbers of what was kept: out of the way of the first ones."""
    moved = tuple(fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 16) for descriptor in kept)
    close_all_but(set(moved))
    return moved


def names(directory: int) -> list[str]:
    """What is in a held directory now.

    Listed through a fresh descriptor: btrfs notes when a directory is opened or rewound how far a listing of it goes, and
    `os.listdir` rewinds only after it has read, so a held descriptor would not show what was made since.
    """
    fresh = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=directory)
    try:
        return os.listdir(fresh)  # noqa: PTH208 (by descriptor, so that nobody can swap the path)
    finally:
        os.close(fresh)


def read_json(directory: int, name: str, limit: int = 65536) -> Any:
    """A small JSON file below `directory`; FileNotFoundError, or ValueError when it is not JSON or larger than `limit`."""
    descriptor = open_beneath(directory, name, os.O_RDONLY)
    with os.fdopen(descriptor, "rb") as file:
        data = file.read(limit + 1)
    if len(data) > limit:
        raise ValueError(f"{name} is larger than {limit} bytes")
    return json.loads(data)


def write_json(directory: int, name: str, value: Any) -> None:
    """Replace a JSON file (0600) in `directory`: readers see the old one or the new one, whole. Not fsynced."""
    staged = f".{name}.{secrets.token_hex(6)}"
    descriptor = open_beneath(directory, staged, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "w") as file:
            json.dump(value, file)
        os.rename(staged, name, src_dir_fd=directory, dst_dir_fd=directory)
    except BaseException:
        with suppress(FileNotFoundError):
            os.unlink(staged, dir_fd=directory)
        raise


def sync(directory: int, name: str) -> None:
    """Have a file of the directory, and that it is there, on stable storage."""
    descriptor = open_beneath(directory, name, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    os.fsync(directory)


def free_bytes(directory: str | os.PathLike[str]) -> int:
    """What the file system of a directory has left for those who are not root (btrfs answers with its own estimate)."""
    facts = os.statvfs(directory)
    return facts.f_bavail * facts.f_frsize


def need_replaceable(path: str | os.PathLike[str]) -> None:
    """OSError, with a reason, for a path that a file must not take the place of: a device, a FIFO, a socket, a link, a directory."""
    try:
        mode = os.lstat(path).st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISREG(mode):
        raise OSError(errno.EEXIST, "it is there and is no regular file", os.fspath(path))


def clone(source: int, target: int) -> bool:
    """Make the empty file `target` a copy of `source`: True when they share blocks, False when bytes had to be copied."""
    try:
        syscalls.reflink(source, target)
    except OSError as error:
        if error.errno not in _NO_REFLINK:
            raise
        _copy_with_holes(source, target)
        return False
    return True


def extents(descriptor: int, size: int) -> Iterator[tuple[int, int]]:
    """Where a file holds data: (begin, end), without its holes."""
    position = 0
    while position < size:
        try:
            position = os.lseek(descriptor, position, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:  # only a hole is left
                return
            raise
        end = os.lseek(descriptor, position, os.SEEK_HOLE)
        yield position, end
        position = end


def copy_extents(source: int, target: int, size: int) -> int:
    """Copy what `source` holds to the same places of `target`, whose other bytes stay; how many bytes that were."""
    copied = 0
    for begin, end in extents(source, size):
        position = begin
        while position < end:
            position += _copy_some(source, target, position, min(end - position, _CHUNK))
        copied += end - begin
    return copied


def _copy_with_holes(source: int, target: int) -> None:
    size = os.fstat(source).st_size
    os.ftruncate(target, size)
    copy_extents(source, target, size)


def _copy_some(source: int, target: int, position: int, count: int) -> int:
    try:
        copied = os.copy_file_range(source, target, count, position, position)
    except OSError as error:
        if error.errno not in _NO_REFLINK:
            raise
        # kernels before 5.19 do not copy between file systems
        copied = os.pwrite(target, os.pread(source, min(count, 1 << 20), position), position)
    if copied == 0:
        raise OSError(errno.EIO, "the source became shorter while it was copied")
    return copied


def remove_tree(directory: int, name: str) -> None:
    """Remove a file or a tree below `directory`; nothing there is fine. Symbolic links are removed, never followed."""
    try:
        mode = os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISDIR(mode):
        with suppress(FileNotFoundError):
            os.unlink(name, dir_fd=directory)
        return
    inner = open_directory(name, inside=directory)
    try:
        for entry in os.listdir(inner):  # noqa: PTH208 (by descriptor, so that nobody can swap the path)
            remove_tree(inner, entry)
    finally:
        os.close(inner)
    with suppress(FileNotFoundError):
        os.rmdir(name, dir_fd=directory)
