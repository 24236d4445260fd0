"""The initramfs archive, read back by a reader of its own."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from space.setup import cpio, initramfs, shelf


def read(data: bytes) -> dict[str, tuple[int, bytes, tuple[int, int]]]:
    """Name to (mode, content, device); the trailer must be there and end it."""
    found: dict[str, tuple[int, bytes, tuple[int, int]]] = {}
    at = 0
    while True:
        assert at % 4 == 0
        assert data[at : at + 6] == b"070701"
        fields = [int(data[at + 6 + 8 * n : at + 14 + 8 * n], 16) for n in range(13)]
        mode, uid, gid, mtime, size, device, name_length = (
            fields[1],
            fields[2],
            fields[3],
            fields[5],
            fields[6],
            (fields[9], fields[10]),
            fields[11],
        )
        name = data[at + 110 : at + 110 + name_length]
        assert name.endswith(b"\0")
        start = (at + 110 + name_length + 3) // 4 * 4
        at = (start + size + 3) // 4 * 4
        if name == b"TRAILER!!!\0":
            assert at == len(data)
            return found
        assert (uid, gid, mtime) == (0, 0, 0)
        found[name[:-1].decode()] = (mode, data[start : start + size], device)


@pytest.mark.parametrize("size", range(9))
def test_every_content_comes_back_whatever_its_padding(size: int) -> None:
    entries = [cpio.directory("d"), cpio.file("d" + "x" * size, b"a" * size, 0o755), cpio.character_device("console", 5, 1)]
    assert read(cpio.archive(entries)) == {
        "d": (stat.S_IFDIR | 0o755, b"", (0, 0)),
        "d" + "x" * size: (stat.S_IFREG | 0o755, b"a" * size, (0, 0)),
        "console": (stat.S_IFCHR | 0o600, b"", (5, 1)),
    }


def test_the_initramfs_has_init_console_and_modules_in_order(tmp_path: Path) -> None:
    kernel, daemon = tmp_path / "kernel", tmp_path / "daemon"
    (kernel / "modules").mkdir(parents=True)
    daemon.mkdir()
    for name in ("virtio.ko", "virtio_net.ko"):
        (kernel / "modules" / name).write_bytes(name.encode() * 3)
    (kernel / "modules.order").write_text("virtio_net.ko\nvirtio.ko\n")
    shelf.describe(kernel, release="6.1.0-test")
    (daemon / "space").write_bytes(b"\x7fELF")
    found = read(cpio.archive(initramfs.entries(kernel, daemon)))
    assert found["init"] == (stat.S_IFREG | 0o755, b"\x7fELF", (0, 0))
    assert found["dev/console"][2] == (5, 1)
    assert found["lib/space/modules.order"][1] == b"virtio_net.ko\nvirtio.ko\n"
    assert found["lib/space/modules/virtio.ko"][1] == b"virtio.ko" * 3
    assert list(found).index("lib/space/modules") < list(found).index("lib/space/modules/virtio.ko")
