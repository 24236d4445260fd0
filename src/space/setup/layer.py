"""Debian by package list, for recipes: a root disk that mmdebstrap makes on this machine of signed packages, and a template of it.

The one step of a template that is done on the host, by its operator and for everybody: a tenant's recipe can only name a list that was
made (`base.debian`). A disk is kept under its list and the package lists that apt had then, so it is made once; a later set-up gives it the
kernel, initramfs and VMM of its time (`refresh`).
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from space.config.artefacts import Store
from space.config.instance import DATA_ROOT
from space.core.template.model import FromDebian
from space.core.template.plan import debian_name
from space.core.template.recipe import RecipeRefused, load, parse
from space.model.errors import InvalidArgument, PermissionDenied
from space.model.sandbox import DEFAULT_TEMPLATE
from space.setup import apt, rootfs, shelf, storage, template


def make(packages: Sequence[str], python: Path, *, update: bool = False) -> tuple[str, bool]:
    """The shipped name of the template with these packages, and whether anything was made.

    python: an interpreter that has the server's dependencies. update: take newer packages if there are any. SetupFailed, InvalidArgument.
    """
    names = listed(packages)
    if os.geteuid() != 0:
        raise PermissionDenied("a Debian layer is made by root", hint="run it with sudo on the server's machine")
    store = Store(DATA_ROOT / "artefacts")
    with storage.locked():
        shelf.sweep_stages(store.root / "rootfs")
        shelf.sweep_stages(store.root / "template")
        now = store.template(DEFAULT_TEMPLATE)
        store.stands(now)
        if update:
            apt.update()
        disk, fresh = rootfs.make(store, python, update=update, extra=names)
        boots = {kind: store.path(kind, getattr(now, kind)) for kind in ("kernel", "initramfs", "qemu")}
        _, changed = template.make(store, disk=disk, name=debian_name(names), **boots)
    return debian_name(names), fresh or changed


def refresh(store: Store, *, kernel: Path, initramfs: Path, qemu: Path) -> tuple[Path, bool]:
    """Every layer that is there boots with these from now on; where their names are, and whether anything changed.

    The caller holds the machine's lock.
    """
    newest: dict[tuple[str, ...], Path] = {}
    disks = [entry for entry in _entries(store.root / "rootfs") if shelf.manifest(entry).get("extra")]
    for disk in sorted(disks, key=lambda entry: entry.stat().st_mtime_ns):
        newest[tuple(shelf.manifest(disk)["extra"])] = disk
    made = [
        template.make(store, kernel=kernel, initramfs=initramfs, qemu=qemu, disk=disk, name=debian_name(extra))
        for extra, disk in newest.items()
    ]
    return store.root / "names", any(changed for _, changed in made)


def listed(packages: Sequence[str]) -> tuple[str, ...]:
    """The list as a recipe has it: each once, sorted. InvalidArgument names what is no package's name."""
    try:
        base = load({"version": 1, "base": {"debian": list(packages)}}).base
    except RecipeRefused as refused:
        raise InvalidArgument(str(refused), hint="names of Debian packages, without versions") from None
    assert isinstance(base, FromDebian), "that is what was asked for"
    return base.packages


def of_recipe(path: Path) -> tuple[str, ...]:
    """The packages of a recipe file's base.debian. InvalidArgument when it has none."""
    try:
        base = parse(path.read_text()).base
    except OSError as error:
        raise InvalidArgument(f"cannot read {path}: {error.strerror}") from None
    except (RecipeRefused, UnicodeDecodeError) as refused:
        raise InvalidArgument(f"{path}: {refused}"[:4000]) from None
    if not isinstance(base, FromDebian):
        raise InvalidArgument(f"{path} does not stand on Debian packages", hint='debian = ["..."] under [base]')
    return base.packages


def _entries(directory: Path) -> list[Path]:
    return [entry for entry in directory.iterdir() if not entry.name.startswith(".")] if directory.is_dir() else []
