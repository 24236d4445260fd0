"""A shelf of directories that are whole or not there: staged under a random name, committed by rename. By held descriptors, for root.

    .stage-<random>/ {disk.img 0400, manifest.json 0440}  ->  <digest>/        and, on its way out, .gone-<random>/

The disk is a reflink of the one that it is made from: nobody who could write that one can write this.
"""

from __future__ import annotations

import errno
import os
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

from space.config.manifest import TemplateManifest
from space.host import files
from space.model.errors import Conflict, Internal

DISK, MANIFEST = "disk.img", "manifest.json"
_STAGE, _GONE = ".stage-", ".gone-"


Reached = Callable[[str], object]


def commit(shelf: int, source: int, manifest: TemplateManifest, *, gid: int, reached: Reached = lambda step: None) -> bool:
    """Put the disk `source` on the shelf under its manifest's digest; False when it was there. gid: who reads the manifest.
    reached: told of each step, for tests.

    A template is on stable storage when this returns; a kept step of a build, which can be made anew, need not be. An OSError (a full
    disk) leaves nothing behind.
    """
    if holds(shelf, manifest.digest):
        os.utime(manifest.digest, dir_fd=shelf)
        return False
    stage = f"{_STAGE}{secrets.token_hex(8)}"
    os.mkdir(stage, 0o700, dir_fd=shelf)
    try:
        reached("template staged")
        with _opened(shelf, stage) as directory:
            size = _copy(source, directory)
            reached("template copied")
            _describe(directory, replace(manifest, disk_bytes=size), gid)
            reached("template described")
            os.fchown(directory, 0, gid)
            os.fchmod(directory, 0o750)
            if durable := manifest.kind == "template":
                for name in (DISK, MANIFEST):
                    files.sync(directory, name)
                os.fsync(directory)
        try:
            os.rename(stage, manifest.digest, src_dir_fd=shelf, dst_dir_fd=shelf)
        except OSError as error:
            if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
                raise
            return False  # somebody committed it meanwhile: equal names are equal things
        if durable:
            os.fsync(shelf)
        reached("template committed")
        return True
    finally:
        files.remove_tree(shelf, stage)


def holds(shelf: int, name: str) -> bool:
    """Whether it is there."""
    try:
        os.stat(name, dir_fd=shelf, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def open_disk(shelf: int, name: str) -> int:
    """The disk of one that is there, for reading; FileNotFoundError."""
    return files.open_beneath(shelf, f"{name}/{DISK}", os.O_RDONLY)


def drop(shelf: int, name: str, *, reached: Reached = lambda step: None) -> bool:
    """Take it away: gone at once for whoever looks, then piece by piece. False when it was not there. reached: as in `commit`."""
    gone = f"{_GONE}{secrets.token_hex(8)}"
    try:
        os.rename(name, gone, src_dir_fd=shelf, dst_dir_fd=shelf)
    except FileNotFoundError:
        return False
    reached("template gone")
    files.remove_tree(shelf, gone)
    return True


def tidy(shelf: int) -> list[str]:
    """Remove what a crash left half made or half removed; its names."""
    left = [name for name in files.names(shelf) if name.startswith((_STAGE, _GONE))]
    for name in left:
        files.remove_tree(shelf, name)
    return left


def _copy(source: int, directory: int) -> int:
    target = files.open_beneath(directory, DISK, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o400)
    try:
        before = os.fstat(source).st_size
        files.clone(source, target)
        if (size := os.fstat(target).st_size) != before:
            raise Conflict(f"the disk changed its size from {before} to {size} while it was kept", hint="stop its sandbox first")
        return size
    finally:
        os.close(target)


def _describe(directory: int, manifest: TemplateManifest, gid: int) -> None:
    if not manifest.complete:
        raise Internal(f"template {manifest.digest} is not complete")
    descriptor = files.open_beneath(directory, MANIFEST, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o400)
    try:
        manifest.write(descriptor)
        os.fchown(descriptor, 0, gid)
        os.fchmod(descriptor, 0o440)
    finally:
        os.close(descriptor)


@contextmanager
def _opened(shelf: int, name: str) -> Iterator[int]:
    descriptor = files.open_directory(name, inside=shelf)
    try:
        yield descriptor
    finally:
        os.close(descriptor)
