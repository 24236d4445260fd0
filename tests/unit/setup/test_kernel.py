"""Taking a kernel apart: bytes in, bytes or a sentence out."""

from __future__ import annotations

import struct
from collections.abc import Callable

import pytest

from space.setup import kernel, vmlinux

ELF = b"\x7fELF" + bytes(range(200))
LZ4 = b"\x02\x21\x4c\x18"


def image(payload: bytes = LZ4 + b"packed", *, size: int = len(ELF), version: int = 0x20F, sectors: int = 2) -> bytes:
    """A bzImage with that payload 64 bytes after its setup sectors."""
    head = bytearray((sectors + 1) * 512 + 64)
    head[0x1F1] = sectors
    head[0x202:0x206] = b"HdrS"
    struct.pack_into("<H", head, 0x206, version)
    struct.pack_into("<II", head, 0x248, 64, len(payload) + 4)
    return bytes(head) + payload + struct.pack("<I", size) + b"signature"


def test_the_payload_reaches_the_decompressor_without_its_size() -> None:
    seen = []

    def decompress(method: str, data: bytes) -> bytes:
        seen.append((method, data))
        return ELF

    assert vmlinux.unpack(image(), decompress) == ELF
    assert vmlinux.unpack(image(b"\x28\xb5\x2f\xfd...", sectors=27), decompress) == ELF
    assert seen == [("lz4", LZ4 + b"packed"), ("zstd", b"\x28\xb5\x2f\xfd...")]


@pytest.mark.parametrize(
    ("data", "unpacked", "sentence"),
    [
        (b"", ELF, "no HdrS"),
        (bytes(4096), ELF, "no HdrS"),
        (image(version=0x207), ELF, "older than 2.08"),
        (image(b"gzipped!"), ELF, "neither lz4 nor zstd"),
        (image()[:-20], ELF, "not within the image"),
        (image(size=len(ELF) + 1), ELF, "not to an ELF"),
        (image(size=4), b"oops", "not to an ELF"),
    ],
)
def test_what_is_no_kernel_is_refused_with_a_reason(data: bytes, unpacked: bytes, sentence: str) -> None:
    decompress: Callable[[str, bytes], bytes] = lambda _method, _data: unpacked  # noqa: E731
    with pytest.raises(ValueError, match=sentence):
        vmlinux.unpack(data, decompress)


def test_modules_come_after_what_they_need_and_built_in_ones_are_left_out() -> None:
    table = kernel.parse_dependencies(
        "kernel/net/failover.ko:\n"
        "kernel/drivers/net/net_failover.ko: kernel/net/failover.ko\n"
        "kernel/drivers/net/virtio_net.ko.xz: kernel/drivers/net/net_failover.ko kernel/net/failover.ko\n"
        "kernel/drivers/char/hw_random/virtio-rng.ko: kernel/drivers/char/hw_random/rng-core.ko\n"
        "kernel/drivers/char/hw_random/rng-core.ko:\n"
        "kernel/fs/unwanted.ko:\n"
    )
    assert kernel.in_order(("virtio_ring", "virtio_net", "virtio-rng", "failover"), table) == [
        "kernel/net/failover.ko",
        "kernel/drivers/net/net_failover.ko",
        "kernel/drivers/net/virtio_net.ko.xz",
        "kernel/drivers/char/hw_random/rng-core.ko",
        "kernel/drivers/char/hw_random/virtio-rng.ko",
    ]
