"""What earlier set-ups made of this machine's artefacts and nothing uses any more: `space prune --host`.

A set-up with a newer kernel, daemon or list of packages makes new artefacts beside the old ones, because a suspended sandbox wakes with
the VMM, and a stopped one boots with the kernel, that it had. So an artefact stays as long as a name leads to it, a template, a snapshot
or a sandbox of any instance needs it, or it is the newest of its kind, of which the next set-up makes use.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from stat import S_ISREG
from typing import Any

from space.config.artefacts import Store
from space.config.instance import DATA_ROOT, Instance, instances
from space.model.errors import Conflict, PermissionDenied
from space.node.ledger import Ledger
from space.setup import shelf, storage

KINDS = ("template", "initramfs", "daemon", "kernel", "qemu", "rootfs")  # in the order in which they go: who needs another before it
_MOST = 1 << 20
_DISK = "root disk "

Key = tuple[str, str]  # kind, digest


@dataclass(frozen=True, slots=True)
class Artefact:
    """One that lies there. needs: what it cannot be used without. made: seconds since the epoch."""

    needs: frozenset[Key] = frozenset()
    made: float = 0.0


@dataclass(slots=True)
class Pruned:
    """What went, or would go."""

    artefacts: list[str] = field(default_factory=list)
    freed_bytes: int = 0


def unused(there: Mapping[Key, Artefact], used: Iterable[Key]) -> list[Key]:
    """What may go: neither in `used`, nor the newest of its kind, nor needed by what stays. Sorted by kind, as they must go."""
    newest: dict[str, Key] = {}
    for key, artefact in there.items():
        first = newest.setdefault(key[0], key)
        if (artefact.made, key) > (there[first].made, first):
            newest[key[0]] = key
    kept: set[Key] = set()
    left = [*used, *newest.values()]
    while left:
        key = left.pop()
        if key not in kept:
            kept.add(key)
            left += there[key].needs if key in there else ()
    return sorted(there.keys() - kept, key=lambda key: (KINDS.index(key[0]), key))


def prune(*, dry_run: bool = False, data_root: Path = DATA_ROOT) -> Pruned:
    """Remove it, as root, while no set-up is at work. Conflict: something that uses artefacts cannot be read, and nothing goes."""
    if os.geteuid() != 0:
        raise PermissionDenied("what set-up made is root's", hint="run it with sudo on the server's machine")
    store = Store(data_root / "artefacts")
    with storage.locked():
        going = unused(_there(store), _used(store, instances(data_root=data_root)))
        places = [store.path(kind, digest) for kind, digest in going]
        done = Pruned([f"{kind}/{digest}" for kind, digest in going], _bytes(places))
        for place in () if dry_run else places:
            _remove(place)
    return done


def _remove(place: Path) -> None:
    """First out of its name, so that nobody finds half of it."""
    stage = place.with_name(f"{shelf.STAGE}{place.name}")
    place.rename(stage)
    shelf.remove(stage)


def _there(store: Store) -> dict[Key, Artefact]:
    found = {}
    for kind in KINDS:
        directory = store.root / kind
        for entry in sorted(directory.iterdir()) if directory.is_dir() else ():
            if not entry.name.startswith("."):
                facts = _facts(entry / "manifest.json")
                found[kind, entry.name] = Artefact(frozenset(_needs(kind, facts)), entry.stat().st_mtime)
    return found


def _bytes(places: Iterable[Path]) -> int:
    """What is free once they are gone: a template's disk has a name beside its root disk, and is free when both have gone."""
    names = Counter[tuple[int, int]]()
    files = {}
    for place in places:
        for path in place.rglob("*"):
            found = path.lstat()
            names[found.st_dev, found.st_ino] += 1
            files[found.st_dev, found.st_ino] = found
    return sum(found.st_blocks * 512 for inode, found in files.items() if S_ISREG(found.st_mode) and names[inode] == found.st_nlink)


def _needs(kind: str, facts: Mapping[str, Any]) -> Iterable[Key]:
    for other in ("kernel", "initramfs", "qemu", "daemon"):
        if other != kind and isinstance(facts.get(other), str):
            yield other, facts[other]
    if isinstance(facts.get("vmm"), str):
        yield "qemu", facts["vmm"]
    if kind == "template" and _DISK in str(facts.get("source", "")):
        yield "rootfs", str(facts["source"]).rpartition(_DISK)[2]


def _used(store: Store, served: Iterable[Instance]) -> Iterable[Key]:
    names = store.root / "names"
    for link in sorted(names.iterdir()) if names.is_dir() else ():
        yield "template", link.resolve().name
    for instance in served:
        yield from _of_instance(instance)


def _of_instance(instance: Instance) -> Iterable[Key]:
    for directory in (instance.templates, instance.snapshots):
        for entry in sorted(directory.iterdir()) if directory.is_dir() else ():
            if (entry / "manifest.json").is_file():  # else it is being made, of what a name leads to
                facts = _facts(entry / "manifest.json")
                yield from _needs("", facts)
                yield from _needs("", facts.get("machine", {}))
                yield from (("template", str(facts[name])) for name in ("template", "parent") if facts.get(name))
    for digest in _of_sandboxes(instance):
        yield "template", digest


def _of_sandboxes(instance: Instance) -> list[str]:
    """Of a copy: the node has it open, and what it writes meanwhile stands on what a name leads to."""
    files = sorted(instance.node_data.glob("ledger.db*")) if instance.node_data.is_dir() else []
    if not files:
        return []
    with tempfile.TemporaryDirectory(prefix="space-prune-") as place:
        for path in files:
            shutil.copy(path, place)
        try:
            ledger = Ledger(Path(place) / "ledger.db")
            try:
                records = ledger.records()
            finally:
                ledger.close()
        except Exception as error:
            raise Conflict(
                f"what the sandboxes of instance {instance.name} stand on cannot be read: {error}",
                hint="stop its server, or remove the instance, and prune again",
            ) from error
        if any(path.suffix == ".torn" for path in Path(place).iterdir()):
            raise Conflict(f"the ledger of instance {instance.name} cannot be read", hint="start its server once, and prune again")
    return [record.digest for record in records]


def _facts(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            facts = json.loads(file.read(_MOST))
    except (OSError, ValueError) as error:
        raise Conflict(f"{path} cannot be read: {error}", hint="`space setup --check` says what is wrong with it") from error
    if not isinstance(facts, dict):
        raise Conflict(f"{path} is no manifest")
    return facts
