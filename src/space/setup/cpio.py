"""An initramfs archive in the kernel's newc format (Documentation/driver-api/early-userspace/buffer-format): pure, bytes out."""

from __future__ import annotations

import stat
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Entry:
    """One file, directory or device. `mode` has the type bits; `device` is (major, minor) of a device."""

    name: str
    mode: int
    data: bytes = b""
    device: tuple[int, int] = (0, 0)


def directory(name: str) -> Entry:
    """A directory, 0755."""
    return Entry(name, stat.S_IFDIR | 0o755)


def file(name: str, data: bytes, mode: int = 0o644) -> Entry:
    """A regular file."""
    return Entry(name, stat.S_IFREG | mode, data)


def character_device(name: str, major: int, minor: int) -> Entry:
    """A character device, 0600."""
    return Entry(name, stat.S_IFCHR | 0o600, device=(major, minor))


def archive(entries: Iterable[Entry]) -> bytes:
    """All entries, root-owned, without times: equal entries give equal bytes. Parents must come before their children."""
    out = bytearray()
    for number, entry in enumerate([*entries, Entry("TRAILER!!!", 0)], 1):
        name = entry.name.encode() + b"\0"
        links = 2 if stat.S_ISDIR(entry.mode) else 1
        fields = (number, entry.mode, 0, 0, links, 0, len(entry.data), 0, 0, *entry.device, len(name), 0)
        out += b"070701" + b"".join(b"%08X" % field for field in fields) + name
        _pad(out)
        out += entry.data
        _pad(out)
    return bytes(out)


def _pad(out: bytearray) -> None:
    out += bytes(-len(out) % 4)
