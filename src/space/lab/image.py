"""What the level-1 machine is made of, each by the digest of its inputs, so that a second use makes nothing.

<lab>/root-<digest>/     root.ext4: a Debian with Python, the network's tools and the kernel's modules
<lab>/data-<digest>/     data.img: btrfs with the artefacts of the base template, Firecracker, and the libraries of this interpreter
<lab>/saved-<digest>/    memory, state, root.ext4: the machine as it was saved; belongs to this processor's clock and this QEMU
"""

from __future__ import annotations

import asyncio
import importlib.util
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from space.config import firecracker
from space.config.artefacts import Store, TemplateManifest
from space.host import clockrate
from space.lab import machine, plan
from space.lab.machine import Saved
from space.model.errors import Conflict, NotFound
from space.setup import apt, command, inputs, qemu, rootfs, shelf

__all__ = ["Saved", "ensure"]
_BUILDER = 1
_PACKAGES = ("python3", "kmod", "iproute2", "nftables", "btrfs-progs", "procps", "ca-certificates")
_ROOT_BYTES, _DATA_BYTES = 3 << 30, 4 << 30
# Of the interpreter's libraries, what no test in there needs.
_LEFT_OUT = (
    "mypy",
    "ruff",
    "pip",
    "schemathesis",
    "sqlalchemy",
    "jsonschema",
    "grimp",
    "__editable__",
    "space",
    "setuptools",
    "_pytest_timeout",
)


def ensure(store: Store, directory: Path, say: Callable[[str], object]) -> Saved:
    """The saved machine for what is on this host now; made first where it is not there. NotFound without template or Firecracker."""
    manifest, jailed = store.template("base"), firecracker.current(store)
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    root = _root(store, manifest, directory, say)
    data = _data(store, manifest, jailed, directory, say)
    kernel_file = store.path("kernel", manifest.kernel) / "vmlinux"
    initramfs = store.path("initramfs", manifest.initramfs) / "initrd.cpio"
    key = inputs.of_value(
        {
            "builder": _BUILDER, "root": root.name, "kernel": manifest.kernel, "initramfs": manifest.initramfs,
            "tsc_khz": clockrate.tsc()[0], "qemu": inputs.of_file(qemu.BINARY), "prepare": plan.prepare(),
            "argv": plan.argv(plan.Files(*(Path("/x"),) * 7), 0, saved=True),
        }
    )  # fmt: skip
    final = directory / f"saved-{key}"
    if not final.is_dir():
        say("lab: booting the machine and saving it\n")
        _forget(directory, "saved-")
        with _staged(final) as stage:
            command.run(["cp", "--sparse=always", root / "root.ext4", stage / "root.ext4"], what="copy the lab's root disk")
            asyncio.run(machine.build(Saved(stage, kernel_file, initramfs, data / "data.img")))
    return Saved(final, kernel_file, initramfs, data / "data.img")


def _root(store: Store, manifest: TemplateManifest, directory: Path, say: Callable[[str], object]) -> Path:
    facts = shelf.manifest(store.path("kernel", manifest.kernel))
    key = inputs.of_value({"builder": _BUILDER, "packages": _PACKAGES, "kernel": facts["sha256"], "bytes": _ROOT_BYTES})
    final = directory / f"root-{key}"
    if final.is_dir():
        return final
    say("lab: making its root disk (a minute)\n")
    package = apt.show(str(facts["package"]))
    if package.sha256 != facts["sha256"]:
        raise Conflict(
            f"the guest's kernel is {facts['version']}, and apt has {package.version} now", hint="`space setup --update` takes that"
        )
    _forget(directory, "root-")
    with _staged(final) as stage:
        tree, unpacked = stage / "tree", stage / "unpacked"
        rootfs.bootstrap(tree, apt.debian_sources(), _PACKAGES)
        command.run(["dpkg-deb", "-x", apt.download(package, stage / "download"), unpacked], what=f"unpack {package.name}")
        release = str(facts["release"])
        shutil.move(unpacked / "lib/modules" / release, tree / "lib/modules" / release)
        command.run(["depmod", "-b", tree, release], what="order the lab's modules")
        for name in ("usr/share/doc", "usr/share/locale", "usr/share/man", "var/cache/apt"):
            shutil.rmtree(tree / name, ignore_errors=True)
        disk = stage / "root.ext4"
        with disk.open("xb") as file:
            file.truncate(_ROOT_BYTES)
        options = ("-q", "-F", "-m", "0", "-O", "^has_journal", "-E", "lazy_itable_init=1")
        command.run(["mkfs.ext4", *options, "-d", tree, disk], what="make the lab's root disk")
        for each in (tree, unpacked, stage / "download"):
            shelf.remove(each)
    return final


def _data(store: Store, manifest: TemplateManifest, jailed: firecracker.Firecracker, directory: Path, say: Callable[[str], object]) -> Path:
    libraries = _libraries()
    parts = [each for each in sorted(libraries.iterdir()) if not each.name.startswith(_LEFT_OUT) and each.suffix != ".pth"]
    key = inputs.of_value(
        {"builder": _BUILDER + 1, "template": manifest.digest, "firecracker": jailed.digest, "libraries": [each.name for each in parts]}
    )
    final = directory / f"data-{key}"
    if final.is_dir():
        return final
    say("lab: making its data disk\n")
    _forget(directory, "data-")
    with _staged(final) as stage:
        image, place = stage / "data.img", stage / "mounted"
        with image.open("xb") as file:
            file.truncate(_DATA_BYTES)
        command.run(["mkfs.btrfs", "-q", "-m", "single", image], what="make the lab's data disk")
        place.mkdir()
        command.run(["mount", "-o", "loop", image, place], what="mount the lab's data disk")
        try:
            artefacts = place / "artefacts"
            named = (("kernel", manifest.kernel), ("initramfs", manifest.initramfs), ("qemu", manifest.qemu), ("template", manifest.digest))
            for kind, name in (*named, ("root", store.authority(manifest.root).name), (firecracker.KIND, jailed.digest)):
                (artefacts / kind).mkdir(parents=True)
                command.run(["cp", "-a", "--sparse=always", store.path(kind, name), artefacts / kind / name], what=f"copy a {kind}")
            (artefacts / "names").mkdir()
            (artefacts / "names" / "base").symlink_to(f"../template/{manifest.digest}")
            (artefacts / firecracker.KIND / firecracker.CURRENT).symlink_to(jailed.digest)
            (place / "site").mkdir()
            command.run(["cp", "-a", *parts, place / "site"], what="copy this interpreter's libraries")
        finally:
            command.run(["umount", place], what="unmount the lab's data disk")
        place.rmdir()
    return final


def _libraries() -> Path:
    """Where this interpreter has the tests' libraries, and the server's beside them."""
    found = importlib.util.find_spec("pytest")
    if found is None or found.origin is None:
        raise NotFound("this interpreter has no pytest", hint="`setup/lab` takes the one that has")
    return Path(found.origin).parents[1]


def _forget(directory: Path, prefix: str) -> None:
    """Those of other inputs: one machine is kept. A machine that runs has its files open, and keeps them."""
    for entry in directory.glob(f"{prefix}*"):
        shelf.remove(entry)


@contextmanager
def _staged(final: Path) -> Iterator[Path]:
    """A directory that gets its name when the block ends well."""
    stage = final.with_name(f".{final.name}")
    shelf.remove(stage)
    stage.mkdir(mode=0o700)
    try:
        yield stage
        stage.rename(final)
    finally:
        shelf.remove(stage)
