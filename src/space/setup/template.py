"""The base template: a root disk with the kernel, initramfs and VMM that it is meant for.

Making one is quick, because the disk is an artefact of its own that is linked in: a new daemon makes a new template without
installing Debian again.
"""

from __future__ import annotations

import os
from pathlib import Path

from space.config.artefacts import Store, TemplateManifest
from space.setup import inputs, rootfs, shelf

NAME = "base"
# The channel's version, `space.core.wire.frames.VERSION`: written again because that module needs msgspec; a test holds them together.
PROTOCOL = 1
_BUILDER = 1


def make(store: Store, *, kernel: Path, initramfs: Path, qemu: Path, disk: Path) -> tuple[Path, bool]:
    """The template over those artefacts under the name `base`, and whether anything changed."""
    parts = {"kernel": kernel.name, "initramfs": initramfs.name, "qemu": qemu.name}
    root = str(shelf.manifest(disk).get("root", ""))  # a disk from before there were roots has none
    named = {"kind": "template", "builder": _BUILDER, "name": NAME, "rootfs": disk.name, "protocol": PROTOCOL, **parts}
    digest = inputs.of_value(named | ({"root": root} if root else {}))
    final = store.path("template", digest)
    if not final.is_dir():
        with shelf.staged(final, recorded=True) as stage:
            os.link(disk / "disk.img", stage / "disk.img")
            manifest = TemplateManifest(
                name=NAME,
                digest=digest,
                disk_bytes=rootfs.DISK_BYTES,
                protocol=PROTOCOL,
                kernel_release=str(shelf.manifest(kernel)["release"]),
                source=f"Debian {shelf.manifest(disk)['suite']} minbase, root disk {disk.name}",
                kernel=kernel.name,
                initramfs=initramfs.name,
                qemu=qemu.name,
                root=root,
            )
            manifest.save(stage / "manifest.json")
    return final, shelf.point(store.root / "names" / NAME, f"../template/{digest}")
