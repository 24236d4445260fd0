"""`space restore`: put what a backup holds in the place of control's directory, all of it or nothing.

    verify the file -> lock the instance -> stage beside -> verify the staged database -> exchange the two directories -> remove the old

The exchange is one step of the kernel: killed before it, the instance is as it was; after it, as the backup was. The state that was
there lies beside until the end; what a killed restore left of either is removed by the next one. A file is trusted for what
its manifest says and its digests hold, as a dump of a database is: digests find damage, not a forger. The next serve brings an older
schema up to date. Sandboxes made since the backup are deleted then; those that have ended since are shown as failed.
"""

from __future__ import annotations

import hashlib
import os
import sqlite3
import stat
import tarfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO
from urllib.parse import quote

import msgspec

from space.config import instance as instances
from space.config.hold import hold
from space.config.instance import DATA_ROOT, RUN_ROOT, Instance
from space.control.store import migrations
from space.host import syscalls
from space.model.errors import InvalidArgument, NoCapacity
from space.serve import layout
from space.serve.backup import DATABASE, FORMAT, KEY, LARGEST_KEY, MANIFEST, Manifest, Part, need_root, rights_of, schema_of, sync_directory
from space.setup import shelf

_STAGED = ".restore-"
_PIECE = 1 << 20
_LARGEST_MANIFEST = 64 << 10
_PLAIN = (tarfile.REGTYPE, tarfile.AREGTYPE)
Sink = Callable[[str, bytes], None]


def restore(name: str, source: Path, *, data_root: Path = DATA_ROOT, run_root: Path = RUN_ROOT) -> Manifest:
    """Restore an instance (which is made if there is none) from a file; what it held.

    InvalidArgument says what is wrong with the file, Conflict that the instance is served: nothing is changed then.
    """
    need_root("space restore")
    with _opened(source) as file:
        manifest = read(file, source)
        found = instances.load(name, data_root=data_root, run_root=run_root)
        with ExitStack() as undo:
            instance = found or instances.claim(name, data_root=data_root, run_root=run_root)
            if found is None:
                undo.callback(_unmake, instance)
            layout.make_directories(instance)
            held = ExitStack()
            undo.push(held)
            held.callback(os.close, layout.lock(instance))
            with rights_of(instance.control_uid):
                # serve may be dead and its control alive; the lock is control's own file.
                held.callback(os.close, hold(instance.control_data, "control"))
            _replace(instance, manifest, file, source)
            undo.pop_all()
            held.close()
    return manifest


def read(file: IO[bytes], path: Path, sink: Sink = lambda name, data: None) -> Manifest:
    """Read a whole backup, verify it, and hand its pieces on. InvalidArgument says what is wrong with it."""
    file.seek(0)
    try:
        with tarfile.open(fileobj=file, mode="r:") as tar:
            manifest = _manifest(tar, path)
            for part in manifest.files:
                _pour(tar, part, path, sink)
            if tar.next() is not None:
                raise InvalidArgument(f"{path} holds more than its manifest names")
    except (tarfile.TarError, EOFError, OverflowError) as error:
        raise InvalidArgument(f"{path} is cut off, or no backup: {error}") from None
    return manifest


def _manifest(tar: tarfile.TarFile, path: Path) -> Manifest:
    member = _member(tar, MANIFEST, path)
    if member.size > _LARGEST_MANIFEST:
        raise InvalidArgument(f"{path} is no backup: its {MANIFEST} has {member.size} bytes")
    raw = b"".join(_pieces(tar, member, path))
    try:
        version = msgspec.json.decode(raw, type=dict)["format"]
        if version != FORMAT:
            raise InvalidArgument(
                f"{path} has format {version!r:.40}, and this version of space reads {FORMAT}", hint="use the newer version"
            )
        manifest = msgspec.json.decode(raw, type=Manifest)
    except (msgspec.MsgspecError, KeyError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidArgument(f"{path} is no backup: its {MANIFEST} is wrong: {error}") from None
    if tuple(part.name for part in manifest.files) not in ((DATABASE,), (DATABASE, KEY)):
        raise InvalidArgument(f"{path} is no backup: its {MANIFEST} names other files")
    if manifest.schema > len(migrations.STEPS):
        raise InvalidArgument(
            f"{path} was made with schema {manifest.schema} by space {manifest.space:.40}, and this version knows {len(migrations.STEPS)}",
            hint="install that version, or a newer one",
        )
    return manifest


def _pour(tar: tarfile.TarFile, part: Part, path: Path, sink: Sink) -> None:
    member, digest = _member(tar, part.name, path), hashlib.sha256()
    if member.size != part.bytes or (part.name == KEY and part.bytes > LARGEST_KEY):
        raise InvalidArgument(f"{path}: {part.name} has {member.size} bytes, and its manifest says {part.bytes}")
    for piece in _pieces(tar, member, path):
        digest.update(piece)
        sink(part.name, piece)
    if digest.hexdigest() != part.sha256:
        raise InvalidArgument(f"{path} is damaged: {part.name} has not the digest that its manifest says", hint="take another copy")


def _member(tar: tarfile.TarFile, name: str, path: Path) -> tarfile.TarInfo:
    found = tar.next()
    if found is None or found.name != name or found.type not in _PLAIN or found.sparse is not None:
        raise InvalidArgument(f"{path} is cut off, or no backup: {name} is not where it belongs")
    return found


def _pieces(tar: tarfile.TarFile, member: tarfile.TarInfo, path: Path) -> Iterator[bytes]:
    file, left = tar.extractfile(member), member.size
    assert file is not None, "it is a plain file"
    while left:
        piece = file.read(min(left, _PIECE))
        if not piece:
            raise InvalidArgument(f"{path} is cut off in {member.name}")
        left -= len(piece)
        yield piece


@contextmanager
def _opened(path: Path) -> Iterator[IO[bytes]]:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)  # a FIFO would be waited for
    except OSError as error:
        raise InvalidArgument(f"cannot read {path}: {error.strerror}") from None
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise InvalidArgument(f"cannot read {path}: it is no regular file")
    with os.fdopen(descriptor, "rb") as file:
        yield file


def _replace(instance: Instance, manifest: Manifest, file: IO[bytes], source: Path) -> None:
    for stale in instance.data.glob(f"{_STAGED}*"):
        shelf.remove(stale)
    staged = instance.data / f"{_STAGED}{os.getpid()}"
    try:
        _stage(staged, instance.control_uid, file, source)
        _check_database(staged, instance.control_uid, manifest, source)
        syscalls.exchange(str(staged), str(instance.control_data))
        sync_directory(instance.data)
    except OSError as error:
        raise NoCapacity(f"cannot restore into {instance.data}: {error.strerror or error}", hint="is the disk full?") from error
    finally:
        with suppress(OSError):  # the next one does it
            shelf.remove(staged)


def _stage(staged: Path, owner: int, file: IO[bytes], source: Path) -> None:
    staged.mkdir(mode=0o700)
    files: dict[str, int] = {}

    def write(name: str, data: bytes) -> None:
        if name not in files:
            files[name] = os.open(staged / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        view = memoryview(data)
        while view:
            view = view[os.write(files[name], view) :]

    try:
        read(file, source, write)
        for descriptor in files.values():
            os.fchown(descriptor, owner, owner)
            os.fsync(descriptor)
    finally:
        for descriptor in files.values():
            os.close(descriptor)
    os.chown(staged, owner, owner)
    sync_directory(staged)


def _check_database(staged: Path, owner: int, manifest: Manifest, source: Path) -> None:
    """With control's rights: a database is code for whoever opens it."""
    try:
        with rights_of(owner):
            # Nobody else knows of it, and nothing may be written beside it.
            connection = sqlite3.connect(f"file:{quote(str(staged / DATABASE))}?immutable=1", uri=True)
            try:
                said = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
                schema = schema_of(connection)
            finally:
                connection.close()
    except sqlite3.Error as error:
        raise InvalidArgument(f"{source}: {DATABASE} is no database: {error}") from None
    if said != "ok" or schema != manifest.schema:
        raise InvalidArgument(f"{source}: {DATABASE} is damaged: {said}, schema {schema} where {manifest.schema} is announced")


def _unmake(instance: Instance) -> None:
    """An instance that this call made."""
    from space.serve.remove import remove

    remove(instance)
