"""Templates of an instance: a sandbox's disk as it is now, another template's with this machine's kernel, or one that came as a file.

What boots them is taken from a template that root made; the caller says only how a sandbox of it begins (`config.manifest.AUTHORS`).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import assert_never

from space.config import manifest as manifests
from space.config import shelf
from space.host import files
from space.model.errors import Conflict, NotFound
from space.model.rootd import DropTemplate, KeepTemplate, OpenTemplate, RebaseTemplate, SealTemplate, Shelving, StageTemplate
from space.rootd import sandboxes
from space.rootd.sandboxes import DISK, Place
from space.rootd.steps import reached

_IMPORT = ".import-"


def perform(place: Place, op: Shelving) -> tuple[int, ...]:
    """Do it; descriptors for the answer, which the caller owns."""
    with _shelf(place) as held:
        match op:
            case KeepTemplate():
                record = sandboxes.get(place, op)
                _put(place, held, op, f"{record.sandbox}/{DISK}", place.directory, record.template)
            case RebaseTemplate():
                # its guests trust the root that lies in the disk, whatever boots it
                root = place.store.salvaged(op.template).root
                used(place, op.template)
                with _directory(os.fspath(place.store.directory(op.template).parent)) as parent:
                    _put(place, held, op, f"{op.template}/{DISK}", parent, op.onto, root=root)
            case StageTemplate():
                return (_stage(place, held, op),)
            case SealTemplate():
                try:
                    if not shelf.holds(held, op.digest):  # it is, when this is asked again after rootd died
                        _put(place, held, op, _IMPORT + op.digest, held, op.onto, parent="")
                    reached("import sealed")
                finally:
                    files.remove_tree(held, _IMPORT + op.digest)
            case OpenTemplate():
                try:
                    return (shelf.open_disk(held, op.digest),)
                except FileNotFoundError:
                    raise NotFound(f"there is no template {op.digest} in this instance") from None
            case DropTemplate():
                users = [record.sandbox for record in sandboxes.existing(place) if record.template == op.digest]
                if users and not op.force and shelf.holds(held, op.digest):
                    raise Conflict(f"template {op.digest} has {len(users)} sandboxes, {users[0]} among them", hint="delete them first")
                files.remove_tree(held, _IMPORT + op.digest)
                shelf.drop(held, op.digest, reached=reached)
            case _:
                assert_never(op)
    return ()


def used(place: Place, digest: str) -> None:
    """Somebody stands on it now: what is pruned goes by that."""
    with suppress(OSError):
        os.utime(place.instance.templates / digest)


def tidy(place: Place) -> list[str]:
    """Remove what a crash left half made."""
    with _shelf(place) as held:
        imports = [name for name in files.names(held) if name.startswith(_IMPORT)]
        for name in imports:
            files.remove_tree(held, name)
        return [*imports, *shelf.tidy(held)]


def _put(
    place: Place,
    held: int,
    op: KeepTemplate | RebaseTemplate | SealTemplate,
    disk: str,
    directory: int,
    onto: str,
    *,
    root: str | None = None,
    parent: str | None = None,
) -> None:
    machine = place.store.template_by_digest(onto)
    wanted = replace(
        machine,
        digest=op.digest,
        parent=onto if parent is None else parent,
        root=machine.root if root is None else root,
        version=manifests.VERSION,
        **manifests.settings(op.settings),
    )
    try:
        source = files.open_beneath(directory, disk, os.O_RDONLY)
    except FileNotFoundError:
        raise NotFound(f"there is no disk to make template {op.digest} of") from None
    try:
        shelf.commit(held, source, wanted, gid=place.instance.node_uid, reached=reached)
    finally:
        os.close(source)


def _stage(place: Place, held: int, op: StageTemplate) -> int:
    files.remove_tree(held, _IMPORT + op.digest)
    descriptor = files.open_beneath(held, _IMPORT + op.digest, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    os.ftruncate(descriptor, op.disk_mib << 20)
    reached("import staged")
    return descriptor


@contextmanager
def _shelf(place: Place) -> Iterator[int]:
    with _directory(os.fspath(place.instance.templates)) as held:
        yield held


@contextmanager
def _directory(path: str) -> Iterator[int]:
    held = files.open_directory(path)
    try:
        yield held
    finally:
        os.close(held)
