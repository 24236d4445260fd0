"""What travels as one file (`core.template.bundle`): read from disks that have holes, sent; received, unpacked and written.

A file that comes is hostile: it is unpacked 128 KiB at a time, and nothing is anything before every block came and the digest was right.
Its size is bounded by what its header says, and by what is free.
"""

from __future__ import annotations

import asyncio
import functools
import os
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import zstandard

from space.core.template.bundle import BLOCK, END, ZEROS, Block, BundleRefused, Content, Header, Reader, head, pack
from space.model.errors import InvalidArgument, NoCapacity
from space.model.sandbox import MIB
from space.rpc import node_api as api
from space.rpc.session import Data, Stream

T = TypeVar("T")
_LEVEL = 3
_WINDOW = 8 << 20  # what unpacking may take of memory; packing at this level needs 2 MiB
_SLICE = 64  # blocks that one step of a thread reads
_LEAST_FREE = 256 * MIB


@dataclass(frozen=True, slots=True)
class Part:
    """A file that is a part of one that travels. base: where it begins there, at a whole block."""

    descriptor: int
    base: int
    size: int

    @property
    def end(self) -> int:
        """Where the next one may begin."""
        return self.base + -(-self.size // BLOCK) * BLOCK


Some = list[tuple[Part, int]]


async def digest(parts: Sequence[Part]) -> str:
    """Of all their blocks that are not zeros."""
    content = Content()
    for some in _slices(parts):
        await in_thread(functools.partial(_digested, content, some))
    return content.digest()


async def send(stream: Stream, header: Header, magic: bytes, parts: Sequence[Part]) -> api.Exported:
    """Pack them, and what of it was sent."""
    packer = zstandard.ZstdCompressor(level=_LEVEL, write_checksum=True).compressobj()
    size = crc = 0

    async def put(data: bytes) -> None:
        nonlocal size, crc
        size, crc = size + len(data), zlib.crc32(data, crc)
        await stream.send(data)

    await put(packer.compress(head(header, magic)))
    for some in _slices(parts):
        await put(await in_thread(functools.partial(_packed, packer, some)))
    await put(packer.compress(END) + packer.flush())
    return api.Exported(header.content, size, crc)


class Incoming:
    """A file that comes. It is unpacked and written in a thread, which asks where to once the header is there (`begin`).

    magic: what it begins with; most: how many bytes of disk it may hold.
    """

    def __init__(self, magic: bytes, most: int) -> None:
        self._what = magic.split()[1].decode()
        self._reader = Reader(most, magic)
        self._loop = asyncio.get_running_loop()
        self._stopped = False
        self._written = 0
        self.parts: list[Part] = []  # where to; none: nothing is written

    @property
    def header(self) -> Header:
        """Once it was received."""
        assert self._reader.header is not None, "it was received"
        return self._reader.header

    async def begin(self, header: Header) -> None:
        """The header is there: make `parts`. BundleRefused, or the host's fault."""
        raise NotImplementedError

    async def receive(self, stream: Stream) -> None:
        """All of it. InvalidArgument says why it is none; NoCapacity: no room for it."""
        unpacker = zstandard.ZstdDecompressor(max_window_size=_WINDOW).stream_writer(self, closefd=False)  # type: ignore[arg-type]
        try:
            async for event in stream:
                if isinstance(event, Data):
                    await in_thread(functools.partial(unpacker.write, event.payload), self.stop)
            self._reader.close()
        except BundleRefused as refused:
            raise InvalidArgument(f"this is no {self._what} that can be imported: {refused}") from None
        except zstandard.ZstdError as error:
            words = f"this is no {self._what} that can be imported: its packing is broken ({str(error)[:120]})"
            raise InvalidArgument(words) from None
        except OSError as error:
            words = f"the {self._what}'s disk cannot be written: {error.strerror}"
            raise NoCapacity(words, hint="free space below the data directory") from None

    async def synced(self) -> None:
        """All that was written is on stable storage."""
        for part in self.parts:
            await in_thread(functools.partial(os.fsync, part.descriptor))

    # -- in the thread -------------------------------------------------------------------------------------------

    def stop(self) -> None:
        """Write nothing more."""
        self._stopped = True

    def write(self, data: bytes) -> int:
        """What was unpacked, a piece of it."""
        if self._stopped:
            raise BundleRefused("the import was given up")
        for found in self._reader.receive(data):
            if isinstance(found, Header):
                asyncio.run_coroutine_threadsafe(self.begin(found), self._loop).result()
            elif self.parts:
                self._put(found)
        return len(data)

    def _put(self, block: Block) -> None:
        part = next((each for each in self.parts if each.base <= block.offset < each.end), None)
        if part is None:
            raise BundleRefused(f"the block at {block.offset} is in no part of it")
        if self._written % 256 == 0 and _free(part.descriptor) < _LEAST_FREE:
            raise NoCapacity("the data's file system is nearly full", hint="`space prune`, or free space below the data directory")
        self._written += 1
        at = block.offset - part.base
        room = min(BLOCK, part.size - at)
        if block.data.count(0, room) != BLOCK - room:
            raise BundleRefused(f"the block at {block.offset} has more than its part")
        os.pwrite(part.descriptor, block.data[:room], at)


async def in_thread(work: Callable[[], T], stop: Callable[[], None] = lambda: None) -> T:
    """Do it there. When this is cancelled it is over in the thread as well, so that descriptors can be closed."""
    task = asyncio.ensure_future(asyncio.to_thread(work))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        stop()
        await asyncio.wait({task})
        if not task.cancelled():
            task.exception()  # it is not news
        raise


def _slices(parts: Sequence[Part]) -> Iterator[Some]:
    """Blocks with data in them, some at a time."""
    some: Some = []
    for part in parts:
        for offset in _offsets(part.descriptor, part.size):
            some.append((part, offset))
            if len(some) == _SLICE:
                yield some
                some = []
    if some:
        yield some


def _offsets(disk: int, size: int) -> Iterator[int]:
    at = 0
    while at < size:
        try:
            begin = os.lseek(disk, at, os.SEEK_DATA)
        except OSError:  # only a hole from here on
            return
        end = os.lseek(disk, begin, os.SEEK_HOLE)
        at = max(at, begin // BLOCK * BLOCK)
        while at < min(end, size):
            yield at
            at += BLOCK


def _read(some: Some) -> Iterator[Block]:
    for part, offset in some:
        data = os.pread(part.descriptor, BLOCK, offset)
        if data and data != ZEROS[: len(data)]:
            yield Block(part.base + offset, data.ljust(BLOCK, b"\0"))


def _digested(content: Content, some: Some) -> None:
    for block in _read(some):
        content.add(block)


def _packed(packer: zstandard.ZstdCompressionObj, some: Some) -> bytes:
    return b"".join(packer.compress(pack(block)) for block in _read(some))


def _free(disk: int) -> int:
    facts = os.fstatvfs(disk)
    return facts.f_bavail * facts.f_frsize
