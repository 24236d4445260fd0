"""`space backup`: what an instance must not lose in one file, while the server runs or is stopped.

    FILE (tar, 0600): manifest.json (format, schema, size and SHA-256 of the others), state.db, admin-key,
                      ingress-ca/<domain>/ca.pem and ca-key.pem, node/export.key (seals sandboxes that went out as files),
                      broker/store.db (sealed), audit/*, and, only when it is asked for, broker.keyring

Databases are copied by SQLite's online backup: one instant, however many writes go on. The broker's goes before the records that it
vouches for, so that no record which it vouched for is missing. A directory is its service's, so everything in it is read with that
service's rights: what a link there leads to is nothing that it could not read itself. FILE is staged beside its place, and has its name
only when it is whole and on the disk.
"""

from __future__ import annotations

import hashlib
import io
import os
import re
import sqlite3
import stat
import tarfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO, cast
from urllib.parse import quote

import msgspec

from space import __version__
from space.config.instance import Instance
from space.host import files, namespaces
from space.model.errors import InvalidArgument, NotFound, Unavailable

FORMAT = 3  # 1 had control's two files alone, 2 no authority of the ingress and no key of exports
MANIFEST, DATABASE, KEY = "manifest.json", "state.db", "admin-key"
STORE, AUDIT, RING = "broker/store.db", "audit/", "broker.keyring"
AUTHORITIES, CERTIFICATE, CERTIFICATE_KEY, EXPORT = "ingress-ca/", "ca.pem", "ca-key.pem", "node/export.key"
DOMAIN = re.compile(r"[a-z0-9_][a-z0-9._-]{0,179}\Z")  # as the setting takes it
RECORDS = re.compile(r"[a-z][a-z0-9-]{0,31}\.(?:[0-9]{20}\.jsonl|head|base)\Z")
LARGEST_KEY = 4096
_STAGED = ".backup-"
_PIECE = 1 << 20
_STORE = STORE.rpartition("/")[2]
_SMALL = 4096
_TRIES = 5


class Part(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A file of a backup."""

    name: str
    bytes: int
    sha256: str


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a backup says of itself. created_at: seconds since the epoch."""

    format: int
    space: str
    instance: str
    created_at: float
    schema: int
    files: tuple[Part, ...]


@contextmanager
def rights_of(uid: int) -> Iterator[None]:
    """Reach files as that uid, and the gid of the same number, for as long as the block runs. The caller is root."""
    groups = os.getgroups()
    os.setgroups([])
    os.setegid(uid)
    os.seteuid(uid)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(0)
        os.setgroups(groups)


def need_root(what: str) -> None:
    """InvalidArgument for anybody else."""
    if os.geteuid() != 0:
        raise InvalidArgument(f"{what} wants root, not uid {os.geteuid()}: it reads keys")


def backup(instance: Instance, target: Path, *, with_keyring: bool = False) -> Manifest:
    """Write the backup; what it holds. InvalidArgument when it cannot be written there, NotFound without a database.

    with_keyring: the key of the broker's store as well, which makes FILE as secret as everything in that store.
    """
    need_root("space backup")
    if not target.name:
        raise InvalidArgument(f"cannot write a backup to {str(target)!r}: that names no file")
    try:
        files.need_replaceable(target)  # before anything secret is read; and again where the name is taken
    except OSError as error:
        raise InvalidArgument(f"cannot write {target}: {error.strerror}") from None
    with ExitStack() as undo:
        try:
            with rights_of(instance.control_uid):
                database, schema = _copy_database(instance.control_data)
                undo.enter_context(database)
                key = _read_key(instance.control_data / KEY)
            sources: list[tuple[str, IO[bytes]]] = [(DATABASE, database)]
            if key is not None:
                sources.append((KEY, io.BytesIO(key)))
            sources += _of_the_ingress(instance)
            with rights_of(instance.node_uid):
                exports = _read_key(instance.data / EXPORT)
            if exports is not None:
                sources.append((EXPORT, io.BytesIO(exports)))
            sources += _of_the_broker(instance, undo, with_keyring=with_keyring)
        except OSError as error:
            raise Unavailable(f"cannot read what is in {instance.data}: {error}") from error
        parts = tuple(_described(name, file) for name, file in sources)
        manifest = Manifest(FORMAT, __version__, instance.name, round(time.time(), 3), schema, parts)
        _write(target, manifest, sources)
    return manifest


def _of_the_ingress(instance: Instance) -> list[tuple[str, IO[bytes]]]:
    """The authorities of its names, which root owns: whoever trusts one goes on trusting it after a restore."""
    sources: list[tuple[str, IO[bytes]]] = []
    places = sorted(instance.ingress_ca.iterdir()) if instance.ingress_ca.is_dir() else []
    for place in places:
        certificate = _read_key(place / CERTIFICATE)  # was written last: with it, the key is there
        key = _read_key(place / CERTIFICATE_KEY)
        if certificate is None or key is None or not DOMAIN.match(place.name):
            continue
        where = f"{AUTHORITIES}{place.name}/"
        sources += [(where + CERTIFICATE, io.BytesIO(certificate)), (where + CERTIFICATE_KEY, io.BytesIO(key))]
    return sources


def _of_the_broker(instance: Instance, undo: ExitStack, *, with_keyring: bool) -> list[tuple[str, IO[bytes]]]:
    """Its store, the records, its key; nothing of an instance that no serve with a broker has run."""
    sources: list[tuple[str, IO[bytes]]] = []
    with rights_of(instance.broker_uid):
        if (instance.broker_data / _STORE).is_file():
            store, _ = _copy_database(instance.broker_data, _STORE)
            sources.append((STORE, undo.enter_context(store)))
    with rights_of(instance.audit_uid):
        sources += [(f"{AUDIT}{name}", undo.enter_context(file)) for name, file in _records(instance.audit_data)]
    if with_keyring:
        from space.serve import vault

        ring = vault.read_ring(place := vault.place(instance))
        if ring is None:
            raise NotFound(f"there is no keyring {place}", hint="setting broker_keyring says where it is")
        sources.append((RING, io.BytesIO(ring)))
    return sources


def _records(directory: Path) -> list[tuple[str, IO[bytes]]]:
    """Every file of the chains, as far as it goes now: their heads first, so that no head is ahead of its records."""
    for _ in range(_TRIES):
        with ExitStack() as undo:
            names = _record_names(directory)
            found: list[tuple[str, IO[bytes]]] = []
            for name in sorted(names, key=lambda name: (name.endswith(".jsonl"), name)):
                with suppress(FileNotFoundError):
                    descriptor = os.open(directory / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
                    file = undo.enter_context(os.fdopen(descriptor, "rb"))
                    found.append((name, cast("IO[bytes]", _Prefix(file)) if name.endswith(".jsonl") else io.BytesIO(file.read(_SMALL))))
            if _record_names(directory) == names and len(found) == len(names):  # else a file was begun, or the oldest went
                undo.pop_all()
                return found
    raise Unavailable(f"the records in {directory} change faster than they can be read", hint="repeat it")


def _record_names(directory: Path) -> set[str]:
    return {entry.name for entry in directory.iterdir() if RECORDS.match(entry.name)} if directory.is_dir() else set()


class _Prefix(io.RawIOBase):
    """A file that grows, up to where it ended when this was made."""

    def __init__(self, file: IO[bytes]) -> None:
        facts = os.fstat(file.fileno())
        if not stat.S_ISREG(facts.st_mode):
            raise InvalidArgument(f"{file.name} is no regular file")
        self._file, self._size, self._at = file, facts.st_size, 0

    def read(self, size: int = -1) -> bytes:
        """At most that many bytes, none at the end."""
        left = self._size - self._at
        data = os.pread(self._file.fileno(), left if size < 0 else min(size, left), self._at)
        self._at += len(data)
        return data

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """From the beginning."""
        assert whence == os.SEEK_SET
        self._at = offset
        return offset

    def close(self) -> None:
        """And the file."""
        self._file.close()
        super().close()


def _copy_database(directory: Path, name: str = DATABASE) -> tuple[IO[bytes], int]:
    """An open copy that has no name any more, and its schema's number (control's alone has one)."""
    for stale in directory.glob(f"{_STAGED}*"):
        pid = stale.name.removeprefix(_STAGED).partition("-")[0]  # SQLite's own files beside it have names that begin the same
        if not pid.isdigit() or int(pid) == os.getpid() or namespaces.start_time(int(pid)) is None:
            stale.unlink(missing_ok=True)
    path, copy = directory / name, directory / f"{_STAGED}{os.getpid()}-{name}"
    if not path.is_file():
        raise NotFound(f"there is no {path}: this instance has never been served", hint="`space serve` makes it")
    try:
        with _opened(path) as source, _opened(copy, create=True) as target:
            target.execute("PRAGMA synchronous=OFF")  # it is read back at once, and written again where it must last
            source.backup(target)
            schema = schema_of(target)
        return copy.open("rb"), schema
    except sqlite3.Error as error:
        raise Unavailable(f"cannot copy {path}: {error}", hint="is the disk full?") from error
    finally:
        for suffix in ("", "-journal", "-wal", "-shm"):
            copy.with_name(f"{copy.name}{suffix}").unlink(missing_ok=True)


@contextmanager
def _opened(path: Path, *, create: bool = False) -> Iterator[sqlite3.Connection]:
    connection = sqlite3.connect(f"file:{quote(str(path))}?mode={'rwc' if create else 'rw'}", uri=True, timeout=10)
    try:
        yield connection
    finally:
        connection.close()


def schema_of(connection: sqlite3.Connection) -> int:
    """How many migrations the database has taken; 0 when it has no number."""
    if not connection.execute("SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'schema_version'").fetchone():
        return 0
    return int(connection.execute("SELECT max(version) FROM schema_version").fetchone()[0] or 0)


def _read_key(path: Path) -> bytes | None:
    with suppress(FileNotFoundError):
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as file:
            data = file.read(LARGEST_KEY + 1) if stat.S_ISREG(os.fstat(descriptor).st_mode) else None
        if data is None or len(data) > LARGEST_KEY:
            raise InvalidArgument(f"{path} is no file of at most {LARGEST_KEY} bytes")
        return data
    return None


def _described(name: str, file: IO[bytes]) -> Part:
    digest, size = hashlib.sha256(), 0
    file.seek(0)
    while piece := file.read(_PIECE):
        digest.update(piece)
        size += len(piece)
    file.seek(0)
    return Part(name, size, digest.hexdigest())


def _write(target: Path, manifest: Manifest, sources: list[tuple[str, IO[bytes]]]) -> None:
    staged = target.with_name(f".{target.name}.{os.getpid()}")
    head = msgspec.json.format(msgspec.json.encode(manifest), indent=1) + b"\n"
    sizes = {part.name: part.bytes for part in manifest.files} | {MANIFEST: len(head)}
    try:
        descriptor = os.open(staged, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            with os.fdopen(descriptor, "wb") as file:
                with tarfile.open(fileobj=file, mode="w:", format=tarfile.PAX_FORMAT) as tar:
                    for name, source in [(MANIFEST, io.BytesIO(head)), *sources]:
                        member = tarfile.TarInfo(name)
                        member.size, member.mode, member.mtime = sizes[name], 0o600, int(manifest.created_at)
                        tar.addfile(member, source)
                file.flush()
                os.fsync(file.fileno())
            files.need_replaceable(target)
            staged.rename(target)
        except BaseException:
            staged.unlink(missing_ok=True)
            raise
        sync_directory(target.parent)
    except OSError as error:
        raise InvalidArgument(f"cannot write {target}: {error.strerror or error}") from error


def sync_directory(path: Path) -> None:
    """Names in it are on the disk when this returns."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
