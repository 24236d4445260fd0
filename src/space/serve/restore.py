"""`space restore`: put what a backup holds in the place of what its services have, all of it or nothing.

    verify the file -> lock the instance -> stage beside -> verify what is staged -> the keyring -> exchange directories -> remove the old

Killed before the exchange, the instance is as it was; after it has begun, the next serve or restore ends it (`exchange`), and it is as the
backup was. What a killed restore left of either state is removed by the next one. A file is trusted for what
its manifest says and its digests hold, as a dump of a database is: digests find damage, not a forger. The next serve brings an older
schema up to date. Sandboxes made since the backup are deleted then; those that have ended since are shown as failed. The keyring gets
the backup's keys in front of those that it has, before anything else is changed: it opens the store that was there and the one that comes.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import sqlite3
import stat
import tarfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO
from urllib.parse import quote

import msgspec

from space.config import instance as instances
from space.config.hold import hold
from space.config.instance import DATA_ROOT, RUN_ROOT, Instance
from space.control.store import migrations
from space.model.errors import InvalidArgument, NoCapacity
from space.serve import exchange, layout, vault
from space.serve.backup import (
    AUDIT,
    AUTHORITIES,
    CERTIFICATE,
    CERTIFICATE_KEY,
    DATABASE,
    DOMAIN,
    EXPORT,
    FORMAT,
    KEY,
    LARGEST_KEY,
    MANIFEST,
    RECORDS,
    RING,
    STORE,
    Manifest,
    Part,
    need_root,
    rights_of,
    schema_of,
    sync_directory,
)
from space.setup import shelf

_PIECE = 1 << 20
_LARGEST_MANIFEST = 64 << 10
_MOST_FILES = 256
_PLAIN = (tarfile.REGTYPE, tarfile.AREGTYPE)
Sink = Callable[[str, bytes], None]


@dataclass(frozen=True, slots=True)
class Wanted:
    """keyring: a file whose keys are taken before the backup's and the instance's own. broker: its store and the records as well."""

    keyring: Path | None = None
    broker: bool = True


def restore(name: str, source: Path, wanted: Wanted = Wanted(), *, data_root: Path = DATA_ROOT, run_root: Path = RUN_ROOT) -> Manifest:
    """Restore an instance (which is made if there is none) from a file; what it held.

    InvalidArgument says what is wrong with the file, Conflict that the instance is served, or that no key opens the broker's store:
    nothing is changed then.
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
            _hold(instance, held)
            if exchange.finish(instance):  # under other names now
                held.close()
                held.callback(os.close, layout.lock(instance))
                _hold(instance, held)
            _replace(instance, manifest, file, source, wanted)
            undo.pop_all()
            held.close()
    return manifest


def _hold(instance: Instance, held: ExitStack) -> None:
    """serve may be dead and its services alive; each lock is the service's own file."""
    services = (("control", instance.control_data, instance.control_uid), ("broker", instance.broker_data, instance.broker_uid))
    for role, directory, uid in (*services, ("keeper of records", instance.audit_data, instance.audit_uid)):
        with rights_of(uid):
            held.callback(os.close, hold(directory, role))


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
        if version not in range(1, FORMAT + 1):
            raise InvalidArgument(
                f"{path} has format {version!r:.40}, and this version of space reads {FORMAT}", hint="use the newer version"
            )
        manifest = msgspec.json.decode(raw, type=Manifest)
    except (msgspec.MsgspecError, KeyError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidArgument(f"{path} is no backup: its {MANIFEST} is wrong: {error}") from None
    if not _are_known([part.name for part in manifest.files]):
        raise InvalidArgument(f"{path} is no backup: its {MANIFEST} names other files")
    if manifest.schema > len(migrations.STEPS):
        raise InvalidArgument(
            f"{path} was made with schema {manifest.schema} by space {manifest.space:.40}, and this version knows {len(migrations.STEPS)}",
            hint="install that version, or a newer one",
        )
    return manifest


def _are_known(names: list[str]) -> bool:
    """control's database first, then what there may be, in the order in which a backup is written; no name twice."""
    if names[:1] != [DATABASE] or len(set(names)) != len(names) or len(names) > _MOST_FILES:
        return False
    rest = names[2:] if names[1:2] == [KEY] else names[1:]
    while rest and rest[0].startswith(AUTHORITIES):
        where = rest[0].removesuffix(CERTIFICATE)
        domain = where.removeprefix(AUTHORITIES).removesuffix("/")
        if not DOMAIN.match(domain) or rest[:2] != [f"{AUTHORITIES}{domain}/{name}" for name in (CERTIFICATE, CERTIFICATE_KEY)]:
            return False
        rest = rest[2:]
    rest = rest[1:] if rest[:1] == [EXPORT] else rest
    rest = rest[1:] if rest[:1] == [STORE] else rest
    rest = rest[:-1] if rest[-1:] == [RING] else rest
    return all(name.startswith(AUDIT) and RECORDS.match(name.removeprefix(AUDIT)) for name in rest)


def _pour(tar: tarfile.TarFile, part: Part, path: Path, sink: Sink) -> None:
    member, digest = _member(tar, part.name, path), hashlib.sha256()
    if member.size != part.bytes or (_is_small(part.name) and part.bytes > LARGEST_KEY):
        raise InvalidArgument(f"{path}: {part.name} has {member.size} bytes, and its manifest says {part.bytes}")
    for piece in _pieces(tar, member, path):
        digest.update(piece)
        sink(part.name, piece)
    if digest.hexdigest() != part.sha256:
        raise InvalidArgument(f"{path} is damaged: {part.name} has not the digest that its manifest says", hint="take another copy")


def _is_small(name: str) -> bool:
    return name in (KEY, RING, EXPORT) or name.startswith(AUTHORITIES)


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


def _replace(instance: Instance, manifest: Manifest, file: IO[bytes], source: Path, wanted: Wanted) -> None:
    for stale in instance.data.glob(f"{exchange.STAGED}*"):
        shelf.remove(stale)
    staged = instance.data / f"{exchange.STAGED}{os.getpid()}"
    held = {part.name for part in manifest.files}
    try:
        names = _stage(instance, staged, file, source, held, wanted)
        _check_database(staged / instance.control_data.name, instance.control_uid, manifest, source)
        if instance.broker_data.name in names:
            _bring_key(instance, staged, wanted)
        exchange.commit(instance, staged, names)
    except OSError as error:
        raise NoCapacity(f"cannot restore into {instance.data}: {error.strerror or error}", hint="is the disk full?") from error
    finally:
        if not exchange.is_begun(staged):
            with suppress(OSError):  # the next one does it
                shelf.remove(staged)


def _stage(instance: Instance, staged: Path, file: IO[bytes], source: Path, held: set[str], wanted: Wanted) -> list[str]:
    """Everything that is wanted below `staged`, with its owners, on the disk; the names of the directories."""
    owners = {instance.control_data.name: instance.control_uid}
    if wanted.broker and STORE in held:
        owners |= {instance.broker_data.name: instance.broker_uid, instance.audit_data.name: instance.audit_uid}
    authorities = _authorities(instance, held)
    single = [EXPORT] if EXPORT in held else []
    staged.mkdir(mode=0o711)
    staged.chmod(0o711)  # whatever the umask made of it: the services' rights look into their own
    for name in owners:
        (staged / name).mkdir(mode=0o700)
    if single:
        (staged / EXPORT).parent.mkdir(mode=0o700)
    for directory in authorities:
        (staged / directory).mkdir(mode=0o755)
        (staged / directory).chmod(0o755)  # control shows the certificate
    with ExitStack() as undo:
        files: dict[str, int] = {}

        def write(name: str, data: bytes) -> None:
            place, owner = _place(instance, staged, name)
            if instance.broker_data.name not in owners and (name == STORE or name.startswith(AUDIT)):
                return
            if name not in files:
                files[name] = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
                undo.callback(os.close, files[name])
                os.fchown(files[name], owner, owner)
                if name.startswith(AUTHORITIES) and place.name == CERTIFICATE:
                    os.fchmod(files[name], 0o644)
            view = memoryview(data)
            while view:
                view = view[os.write(files[name], view) :]

        read(file, source, write)
        for descriptor in files.values():
            os.fsync(descriptor)
    for name, owner in owners.items():
        os.chown(staged / name, owner, owner)
        sync_directory(staged / name)
    if single:
        sync_directory((staged / EXPORT).parent)
    if authorities:
        _keep_others(instance, staged)
        for directory in reversed(authorities):
            sync_directory(staged / directory)
    return [*owners, *single, *authorities[:1]]


def _authorities(instance: Instance, held: set[str]) -> list[str]:
    """The directories of the ingress's authorities in a backup, the one above them first; none when it has none."""
    below = sorted({name.rpartition("/")[0] for name in held if name.startswith(AUTHORITIES)})
    return [instance.ingress_ca.name, *below] if below else []


def _keep_others(instance: Instance, staged: Path) -> None:
    """Authorities that are there for other names than the backup's stay: somebody trusts them."""
    if instance.ingress_ca.is_dir():
        for place in instance.ingress_ca.iterdir():
            target = staged / instance.ingress_ca.name / place.name
            if not target.exists():
                shutil.copytree(place, target, copy_function=os.link)
                sync_directory(target)


def _place(instance: Instance, staged: Path, name: str) -> tuple[Path, int]:
    """Where a file of a backup goes, and whose it is there."""
    directory, _, file = name.rpartition("/")
    if name == RING:
        return staged / RING, 0
    if name == STORE:
        return staged / instance.broker_data.name / file, instance.broker_uid
    if name == EXPORT:
        return staged / EXPORT, instance.node_uid
    if name.startswith(AUTHORITIES):
        return staged / name, 0
    if directory:
        return staged / instance.audit_data.name / file, instance.audit_uid
    return staged / instance.control_data.name / file, instance.control_uid


def _bring_key(instance: Instance, staged: Path, wanted: Wanted) -> None:
    """The keyring opens the store that comes afterwards, or nothing has changed and Conflict says so."""
    where = vault.place(instance)
    there = vault.read_ring(where)
    given = None if wanted.keyring is None else vault.read_ring(wanted.keyring)
    if wanted.keyring is not None and given is None:
        raise InvalidArgument(f"there is no keyring {wanted.keyring}")
    text = vault.merged(given, vault.merged(vault.read_ring(staged / RING), there))
    ring = vault.parsed(text)
    with rights_of(instance.broker_uid):
        vault.need_opening(staged / instance.broker_data.name / STORE.rpartition("/")[2], ring, where)
    vault.put_ring(instance, where, text, there)
    (staged / RING).unlink(missing_ok=True)


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
