r"""A template or a suspended sandbox as one file: what it is, and its bytes without the blocks that are zeros. Pure; packed with zstd.

    "space template 1\n" or "space sandbox 1\n", length (u32), SHA-256 of the header, header (JSON)
    block*: index (u32), 64 KiB                          in rising order, none of zeros only
    end: 0xffffffff

The header has the SHA-256 of all blocks with their indices, so a file says before its disk comes what it is, and nothing is a template
before that was true. Numbers are big-endian. A reader takes at most what the disk's size allows, whatever it was packed of. A sandbox's
"disk" is its memory, device state and disk behind each other, each from a whole block on (`node.parcels`).
"""

from __future__ import annotations

import hashlib
import json
import struct
from dataclasses import asdict, dataclass
from typing import Any

MAGIC = b"space template 1\n"
SANDBOX = b"space sandbox 1\n"
BLOCK = 64 << 10
MIB = 1 << 20
MOST_HEADER = 128 << 10
MOST_DISK = 1 << 40
ZEROS = bytes(BLOCK)
_FIXED = 4 + 32  # behind the first line
_INDEX = struct.Struct(">I")
_END = 0xFFFFFFFF
END = _INDEX.pack(_END)


class BundleRefused(ValueError):
    """The bytes are no template; says why."""


@dataclass(frozen=True, slots=True)
class Header:
    """content: `Content` of its blocks. root: fingerprint of the certificate that its guests trust. settings: the author's half (JSON)."""

    content: str
    disk_bytes: int
    settings: str
    root: str = ""


@dataclass(frozen=True, slots=True)
class Block:
    """64 KiB of the disk."""

    offset: int
    data: bytes


class Content:
    """The digest of a disk: of its blocks that are not zeros, wherever a file system has holes."""

    def __init__(self) -> None:
        self._hash = hashlib.sha256()

    def add(self, block: Block) -> None:
        """The next one."""
        self._hash.update(_INDEX.pack(block.offset // BLOCK))
        self._hash.update(block.data)

    def digest(self) -> str:
        """Of those so far."""
        return self._hash.hexdigest()


def head(header: Header, magic: bytes = MAGIC) -> bytes:
    """The beginning of a file."""
    text = json.dumps(asdict(header), sort_keys=True).encode()
    return magic + _INDEX.pack(len(text)) + hashlib.sha256(text).digest() + text


def pack(block: Block) -> bytes:
    """A block as it stands in a file."""
    return _INDEX.pack(block.offset // BLOCK) + block.data


class Reader:
    """Eats a file piece by piece: first a `Header`, then blocks. `close` says whether that was all of it. most: bytes of a disk.
    magic: what it begins with.
    """

    def __init__(self, most: int = MOST_DISK, magic: bytes = MAGIC) -> None:
        self._most = most
        self._magic = magic
        self._buffer = bytearray()
        self._content = Content()
        self._last = -1
        self._ended = False
        self.header: Header | None = None

    def receive(self, data: bytes | memoryview) -> list[Header | Block]:
        """What is whole now; BundleRefused."""
        if self._ended:
            if len(data):
                raise BundleRefused("there is more after its end")
            return []
        self._buffer += data
        found: list[Header | Block] = []
        if self.header is None:
            if not self._begins():
                return found
            assert self.header is not None, "it was read just now"
            found.append(self.header)
        at = 0
        while not self._ended and (block := self._block(at)) is not None:
            found.append(block)
            at += _INDEX.size + BLOCK
        del self._buffer[:at]
        return found

    def close(self) -> Header:
        """All was received: its header. BundleRefused when a part is missing, or the blocks are others than it says."""
        if self.header is None or not self._ended:
            raise BundleRefused("it ends before its end")
        if self._content.digest() != self.header.content:
            raise BundleRefused(f"its disk has the digest {self._content.digest()}, and it says {self.header.content}")
        return self.header

    def _begins(self) -> bool:
        """Whether the header is there."""
        magic = self._magic
        if self._buffer[: len(magic)] != magic[: len(self._buffer)]:
            raise BundleRefused(f"it is no {magic.split()[1].decode()} of this version of space")
        fixed = len(magic) + _FIXED
        if len(self._buffer) < fixed:
            return False
        (size,) = _INDEX.unpack_from(self._buffer, len(magic))
        if size > MOST_HEADER:
            raise BundleRefused(f"its header has {size} bytes, and at most {MOST_HEADER} are read")
        if len(self._buffer) < fixed + size:
            return False
        text = bytes(self._buffer[fixed : fixed + size])
        if hashlib.sha256(text).digest() != self._buffer[len(magic) + 4 : fixed]:
            raise BundleRefused("its header is not what was written")
        self.header = _header(text, self._most)
        del self._buffer[: fixed + size]
        return True

    def _block(self, at: int) -> Block | None:
        if len(self._buffer) - at < _INDEX.size:
            return None
        (index,) = _INDEX.unpack_from(self._buffer, at)
        if index == _END:
            self._ended = True
            if len(self._buffer) - at > _INDEX.size:
                raise BundleRefused("there is more after its end")
            return None
        assert self.header is not None, "blocks come after it"
        if not self._last < index < self.header.disk_bytes // BLOCK:
            raise BundleRefused(f"block {index} comes after {self._last} of {self.header.disk_bytes // BLOCK}")
        if len(self._buffer) - at < _INDEX.size + BLOCK:
            return None
        block = Block(index * BLOCK, bytes(self._buffer[at + _INDEX.size : at + _INDEX.size + BLOCK]))
        if block.data == ZEROS:
            raise BundleRefused(f"block {index} is of zeros only")
        self._last = index
        self._content.add(block)
        return block


def _header(text: bytes, most: int) -> Header:
    try:
        raw: Any = json.loads(text)
    except (ValueError, RecursionError):
        raise BundleRefused("its header is no JSON") from None
    wanted: dict[str, type] = {"content": str, "disk_bytes": int, "settings": str, "root": str}
    if not isinstance(raw, dict) or raw.keys() != wanted.keys() or any(type(raw[name]) is not kind for name, kind in wanted.items()):
        raise BundleRefused(f"its header has other fields than {', '.join(wanted)}")
    for name, sizes in (("content", (64,)), ("root", (0, 64))):
        if len(raw[name]) not in sizes or not set(raw[name]) <= set("0123456789abcdef"):
            raise BundleRefused(f"its {name} is no digest")
    size = raw["disk_bytes"]
    if size <= 0 or size % MIB:
        raise BundleRefused(f"a disk of {str(size)[:30]} bytes is not one of whole MiB")
    if size > most:
        raise BundleRefused(f"its disk has {size // MIB} MiB, and at most {most // MIB} may come")
    return Header(**raw)
