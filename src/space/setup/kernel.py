"""The guest's kernel: Debian's cloud kernel package, unpacked and never installed.

`kernel/<digest>/` holds vmlinux, the modules that the guest needs, and their order. Both VMMs boot the uncompressed ELF. The
package's scripts are not run; unpacking is done by apt's unprivileged user.
"""

from __future__ import annotations

import lzma
import os
import re
from collections.abc import Iterable
from pathlib import Path

from space.config.artefacts import Store
from space.setup import apt, command, inputs, shelf, vmlinux
from space.setup.faults import SetupFailed

PACKAGE = "linux-image-cloud-amd64"
# Wanted in this order; what they depend on comes before them, what is built in is left out. vsock is Firecracker's channel.
WANTED = (
    "virtio_ring", "virtio", "virtio_mmio", "virtio_blk", "failover", "net_failover", "virtio_net", "vsock",
    "vmw_vsock_virtio_transport_common", "vmw_vsock_virtio_transport", "virtio-rng", "virtio_console",
)  # fmt: skip
_BUILDER = 1
_CONCRETE = re.compile(r"linux-image-\S+-cloud-amd64")


def recipe() -> str:
    """What is done, without which version is found."""
    return inputs.of_value({"kind": "kernel", "builder": _BUILDER, "package": PACKAGE, "modules": WANTED})


def make(store: Store, *, update: bool) -> tuple[Path, bool]:
    """The kernel artefact and whether it was made just now. Without `update` an earlier one of the same recipe is taken as it is."""
    shelf_root = store.root / "kernel"
    if not update and (found := shelf.newest(shelf_root, recipe())):
        return found, False
    package = concrete()
    digest = inputs.of_value({"recipe": recipe(), "package": package.name, "version": package.version, "sha256": package.sha256})
    final = store.path("kernel", digest)
    if final.is_dir():
        final.touch()
        return final, False
    with shelf.staged(final, recorded=True) as stage:
        tree = stage / "unpacked"
        deb = apt.download(package, stage / "download")
        tree.mkdir()
        os.chown(tree, apt.unprivileged(), apt.unprivileged())
        command.run(["dpkg-deb", "-x", deb, tree], what=f"unpack {package.name}", user=apt.unprivileged())
        release = _take(tree, stage)
        shelf.remove(tree)
        shelf.remove(stage / "download")
        shelf.describe(stage, recipe=recipe(), release=release, package=package.name, version=package.version, sha256=package.sha256)
    return final, True


def concrete() -> apt.Package:
    """The kernel package behind the meta package."""
    named = _CONCRETE.search(apt.show(PACKAGE).depends)
    if named is None:
        raise SetupFailed(f"{PACKAGE} depends on no kernel package", hint="run `apt-get update`")
    return apt.show(named.group())


def in_order(wanted: Iterable[str], dependencies: dict[str, list[str]]) -> list[str]:
    """Paths of modules with every module after those it needs; names that have no module are built in and left out.

    `dependencies` is modules.dep: path to the paths it needs. `-` and `_` are one letter in module names.
    """
    by_name = {module_name(path): path for path in dependencies}
    ordered: list[str] = []

    def add(path: str) -> None:
        for needed in reversed(dependencies[path]):
            if needed not in ordered:
                add(needed)
        if path not in ordered:
            ordered.append(path)

    for name in wanted:
        if found := by_name.get(name.replace("-", "_")):
            add(found)
    return ordered


def module_name(path: str) -> str:
    """A module's name out of its path."""
    return path.rpartition("/")[2].partition(".ko")[0].replace("-", "_")


def parse_dependencies(text: str) -> dict[str, list[str]]:
    """modules.dep as a table."""
    return {path: needed.split() for path, _, needed in (line.partition(":") for line in text.splitlines())}


def _take(tree: Path, stage: Path) -> str:
    [image] = (tree / "boot").glob("vmlinuz-*")
    release = image.name.removeprefix("vmlinuz-")
    try:
        elf = vmlinux.unpack(image.read_bytes(), _decompress)
    except ValueError as error:
        raise SetupFailed(f"cannot take the kernel out of {image.name}: {error}") from error
    (stage / "vmlinux").write_bytes(elf)
    command.run(["depmod", "-b", tree, release], what="order the guest's modules")
    root = tree / "lib/modules" / release
    ordered = in_order(WANTED, parse_dependencies((root / "modules.dep").read_text()))
    (stage / "modules").mkdir()
    for path in ordered:
        (stage / "modules" / _plain(path)).write_bytes(_module(root / path))
    (stage / "modules.order").write_text("".join(f"{_plain(path)}\n" for path in ordered))
    return release


def _plain(path: str) -> str:
    return path.rpartition("/")[2].removesuffix(".xz")


def _module(path: Path) -> bytes:
    data = path.read_bytes()
    return lzma.decompress(data) if path.suffix == ".xz" else data


def _decompress(method: str, data: bytes) -> bytes:
    return command.run([method, "-d", "-c"], what="unpack the kernel", stdin=data)
