"""The initramfs: the daemon as /init, the kernel's modules with their order, and the few directories that an init mounts on."""

from __future__ import annotations

from pathlib import Path

from space.config.artefacts import Store
from space.setup import cpio, inputs, shelf

_BUILDER = 1
_DIRECTORIES = ("dev", "proc", "sys", "run", "newroot", "lib", "lib/space", "lib/space/modules")


def make(store: Store, kernel: Path, daemon: Path) -> tuple[Path, bool]:
    """The initramfs of that kernel and daemon, and whether it was made just now."""
    digest = inputs.of_value({"kind": "initramfs", "builder": _BUILDER, "kernel": kernel.name, "daemon": daemon.name})
    final = store.path("initramfs", digest)
    if final.is_dir():
        return final, False
    with shelf.staged(final, recorded=True) as stage:
        (stage / "initrd.cpio").write_bytes(cpio.archive(entries(kernel, daemon)))
        shelf.describe(stage, kernel=kernel.name, daemon=daemon.name, release=shelf.manifest(kernel)["release"])
    return final, True


def entries(kernel: Path, daemon: Path) -> list[cpio.Entry]:
    """What lies in it. /dev/console must be there before anything is mounted: the kernel opens it for init."""
    order = (kernel / "modules.order").read_text()
    return [
        *(cpio.directory(name) for name in _DIRECTORIES),
        cpio.character_device("dev/console", 5, 1),
        cpio.file("init", (daemon / "space").read_bytes(), 0o755),
        cpio.file("lib/space/modules.order", order.encode()),
        *(cpio.file(f"lib/space/modules/{name}", (kernel / "modules" / name).read_bytes()) for name in order.split()),
    ]
