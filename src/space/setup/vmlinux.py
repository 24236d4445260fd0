"""The uncompressed kernel inside a bzImage: pure, bytes in and out, the decompressor given.

The setup header says where the payload lies (Linux's boot protocol 2.08: payload_offset at 0x248, payload_length at 0x24c,
counted from the end of the setup sectors); its last four bytes are the size when unpacked.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping

MAGICS: Mapping[bytes, str] = {b"\x02\x21\x4c\x18": "lz4", b"\x28\xb5\x2f\xfd": "zstd"}


def unpack(image: bytes, decompress: Callable[[str, bytes], bytes]) -> bytes:
    """The ELF inside `image`; ValueError says which check failed. `decompress` gets `lz4` or `zstd` and the packed bytes."""
    if len(image) < 0x250 or image[0x202:0x206] != b"HdrS":
        raise ValueError("not a bzImage: there is no HdrS at offset 0x202")
    (version,) = struct.unpack_from("<H", image, 0x206)
    if version < 0x208:
        raise ValueError(f"boot protocol {version:#x} is older than 2.08")
    offset, length = struct.unpack_from("<II", image, 0x248)
    start = ((image[0x1F1] or 4) + 1) * 512 + offset
    payload = image[start : start + length]
    if len(payload) != length or length < 8:
        raise ValueError(f"the payload of {length} bytes at {start} is not within the image of {len(image)} bytes")
    method = MAGICS.get(payload[:4])
    if method is None:
        raise ValueError(f"the payload begins with {payload[:4].hex(' ')}, which is neither lz4 nor zstd")
    (size,) = struct.unpack_from("<I", payload, length - 4)
    elf = decompress(method, payload[:-4])
    if len(elf) != size or elf[:4] != b"\x7fELF":
        raise ValueError(f"unpacked to {len(elf)} bytes that begin with {elf[:4].hex(' ')}, not to an ELF of {size} bytes")
    return elf
