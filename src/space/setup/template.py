"""The base template: a root disk with the kernel, initramfs and VMM that it is meant for.

Making one is quick, because the disk is an artefact of its own that is linked in: a new daemon makes a new template without
installing Debian again.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from space.config.artefacts import Store, TemplateManifest
from space.setup import inputs, shelf

NAME = "base"
# The channel's version, `space.core.wire.frames.VERSION`: written again because that module needs msgspec; a test holds them together.
PROTOCOL = 1
_BUILDER = 1


def make(store: Store, *, kernel: Path, initramfs: Path, qemu: Path, disk: Path, name: str = NAME) -> tuple[Path, bool]:
    """The template over those artefacts under that name, and whether anything changed."""
    parts = {"kernel": kernel.name, "initramfs": initramfs.name, "qemu": qemu.name}
    facts = shelf.manifest(disk)
    root = str(facts.get("root", ""))  # a disk from before there were roots has none
    named = {"kind": "template", "builder": _BUILDER, "name": name, "rootfs": disk.name, "protocol": PROTOCOL, **parts}
    digest = inputs.of_value(named | ({"root": root} if root else {}))
    final = store.path("template", digest)
    if not final.is_dir():
        with shelf.staged(final, recorded=True) as stage:
            os.link(disk / "disk.img", stage / "disk.img")
            manifest = TemplateManifest(
                name=name,
                digest=digest,
                disk_bytes=(stage / "disk.img").stat().st_size,
                protocol=PROTOCOL,
                kernel_release=str(shelf.manifest(kernel)["release"]),
                source=f"Debian {facts['suite']} minbase{_beside(facts)}, root disk {disk.name}",
                kernel=kernel.name,
                initramfs=initramfs.name,
                qemu=qemu.name,
                root=root,
            )
            manifest.save(stage / "manifest.json")
    return final, shelf.point(store.root / "names" / name, f"../template/{digest}")


def _beside(facts: Mapping[str, Any]) -> str:
    extra = facts.get("extra", [])
    words = " ".join(extra[:20]) + (f" and {len(extra) - 20} more" if len(extra) > 20 else "")
    return f" with {words}" if extra else ""
