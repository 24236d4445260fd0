"""A strict reader of tar streams that a hostile guest may have written: bytes in, entries and their bytes out.

Understood: ustar, pax (`path`, `linkpath`, `size`, `mtime`), GNU long names, base-256 numbers and files with holes (`sparse`);
files, directories, symbolic and hard links. Everything else is refused. The standard library's reader is not used here because it
takes headers of any size into memory, guesses at broken ones and takes a cut-off stream for a whole one; it is the oracle
of this one's tests.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

from space.model.errors import StreamCut, UnsafeArchive
from space.sdk.sparse import Hole, MapReader, judge, plan

BLOCK = 512
_ZERO = bytes(BLOCK)
_MAX_META = 64 << 10


class EntryKind(Enum):
    """What may come out of a guest."""

    FILE = "file"
    DIRECTORY = "directory"
    SYMLINK = "symbolic link"
    HARDLINK = "hard link"


_KINDS = {
    b"0": EntryKind.FILE, b"\0": EntryKind.FILE, b"7": EntryKind.FILE,
    b"1": EntryKind.HARDLINK, b"2": EntryKind.SYMLINK, b"5": EntryKind.DIRECTORY,
}  # fmt: skip
_REFUSED = {b"3": "a character device", b"4": "a block device", b"6": "a FIFO", b"S": "a GNU sparse file of the old form"}


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry as written: the name is raw bytes and not checked. size: of a file; as much data and hole follows. mtime: seconds."""

    name: bytes
    kind: EntryKind
    target: bytes
    size: int
    mode: int
    mtime: int


def shown(name: bytes) -> str:
    """A name for a message: one line, of bounded length."""
    return ascii(name[:200].decode("utf-8", "backslashreplace"))


class TarReader:
    """Feed it the stream; it yields each `Entry`, then that entry's data in pieces and its holes. `finish()` proves that the end came."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._data = 0  # bytes of the current file's data still to come
        self._map: MapReader | None = None  # of the current file's holes, while it comes
        self._size = 0  # of that file
        self._steps: list[tuple[int, int]] = []  # holes and data of that file still to come, the next one last
        self._padding = 0
        self._meta: bytes | None = None  # type flag of the metadata record being gathered
        self._gathered = bytearray()
        self._pax: dict[bytes, bytes] = {}
        self._zeros = 0

    def receive(self, data: bytes) -> Iterator[Entry | bytes | Hole]:
        """What is whole with `data`. UnsafeArchive on anything that is not understood."""
        self._buffer += data
        at = 0
        buffer = self._buffer
        while True:
            if self._data:
                piece = bytes(memoryview(buffer)[at : at + self._data])
                if not piece:
                    break
                at += len(piece)
                self._data -= len(piece)
                if self._meta is None:
                    yield piece
                else:
                    self._gathered += piece
                    if not self._data:
                        self._end_of_meta()
            elif self._steps:
                hole, self._data = self._steps.pop()
                if hole:
                    yield Hole(hole)
            elif self._padding and self._map is None:
                skipped = min(self._padding, len(buffer) - at)
                if not skipped:
                    break
                at += skipped
                self._padding -= skipped
            elif len(buffer) - at >= BLOCK:
                block = bytes(memoryview(buffer)[at : at + BLOCK])
                at += BLOCK
                if self._map is not None:
                    self._take_map(self._map, block)
                    continue
                entry = self._header(block)
                if entry is not None:
                    yield entry
            else:
                break
        del buffer[:at]

    def _take_map(self, reader: MapReader, block: bytes) -> None:
        found = reader.take(block)
        if found is not None:
            self._steps = plan(found, self._size)[::-1]
            self._map = None

    def finish(self) -> None:
        """At the end of the stream: StreamCut unless the archive's end mark (two zero blocks) has come."""
        if self._zeros < 2 or self._buffer:
            raise StreamCut("the tree's tar stream ended before its end mark", hint="repeat the download")

    def _header(self, block: bytes) -> Entry | None:
        if block == _ZERO:
            if self._pax:
                raise UnsafeArchive("the archive ends after a header without an entry")
            self._zeros += 1
            return None
        if self._zeros:
            raise UnsafeArchive("the archive holds data after its end mark")
        if _number(block[148:156]) != sum(block) - sum(block[148:156]) + 8 * 32:
            raise UnsafeArchive("not a tar archive: a header's checksum is wrong")
        flag = block[156:157]
        size = _number(block[124:136])
        name = block[:100].split(b"\0", 1)[0]
        if block[257:263] == b"ustar\0" and (prefix := block[345:500].split(b"\0", 1)[0]):
            name = prefix + b"/" + name
        if flag in (b"x", b"g", b"L", b"K"):
            if not 0 < size <= _MAX_META:
                raise UnsafeArchive(f"the archive holds a header of {size} bytes", hint=f"at most {_MAX_META} are accepted")
            self._meta, self._data, self._padding = flag, size, -size % BLOCK
            self._gathered.clear()
            return None
        pax, self._pax = self._pax, {}
        name = pax.get(b"path", name)
        holes = judge(pax)
        if holes is not None:
            name = holes[0]
        if flag in _REFUSED:
            raise UnsafeArchive(f"entry {shown(name)} is {_REFUSED[flag]}")
        kind = _KINDS.get(flag)
        if kind is None:
            raise UnsafeArchive(f"entry {shown(name)} is of the unknown type {shown(flag)}")
        if kind is EntryKind.FILE and name.endswith(b"/"):
            kind = EntryKind.DIRECTORY  # as before POSIX
        size = _decimal(pax[b"size"]) if b"size" in pax else size
        if kind is not EntryKind.FILE and size:
            raise UnsafeArchive(f"entry {shown(name)} is a {kind.value} with {size} bytes of data")
        self._padding = -size % BLOCK
        if holes is None:
            self._data = size
        elif kind is not EntryKind.FILE:
            raise UnsafeArchive(f"entry {shown(name)} is a sparse {kind.value}")
        else:
            self._map, self._size = MapReader(size, holes[1]), holes[1]
            size = self._size
        target = pax.get(b"linkpath", block[157:257].split(b"\0", 1)[0])
        mtime = _decimal(pax[b"mtime"].split(b".", 1)[0]) if b"mtime" in pax else _moment(block[136:148])
        return Entry(name, kind, target, size, _number(block[100:108]) & 0o7777, mtime)

    def _end_of_meta(self) -> None:
        flag, self._meta = self._meta, None
        record = bytes(self._gathered)
        if flag == b"L":
            self._pax[b"path"] = record.rstrip(b"\0")
        elif flag == b"K":
            self._pax[b"linkpath"] = record.rstrip(b"\0")
        elif flag == b"g":
            # A global header that changed names or sizes would reach every later entry: only comments are let through.
            if set(_pax_records(record)) - {b"comment"}:
                raise UnsafeArchive("the archive holds a global pax header")
        else:
            self._pax.update(_pax_records(record))


def _number(raw: bytes) -> int:
    """A header's number: octal text, or base 256 with the top bit set. Negative ones are refused."""
    if raw[0] & 0x80:
        if raw[0] != 0x80:
            raise UnsafeArchive("the archive holds a number out of range")
        return int.from_bytes(raw[1:], "big")
    text = raw.split(b"\0", 1)[0].strip()
    if not text:
        return 0
    if any(digit not in b"01234567" for digit in text):
        raise UnsafeArchive("not a tar archive: a header's number is wrong")
    return int(text, 8)


def _moment(raw: bytes) -> int:
    """A time: one before 1970 (negative in base 256) becomes 0, for it is no reason to refuse a tree."""
    return 0 if raw[0] == 0xFF else _number(raw)


def _decimal(raw: bytes) -> int:
    if not raw.isdigit() or len(raw) > 19:
        if raw.startswith(b"-") and raw[1:].isdigit():
            return 0  # a time before 1970
        raise UnsafeArchive(f"a pax header holds the number {shown(raw)}")
    return int(raw)


def _pax_records(raw: bytes) -> dict[bytes, bytes]:
    r"""`length key=value\n`, one after the other, to the last byte."""
    records: dict[bytes, bytes] = {}
    while raw:
        length, separator, _ = raw[:12].partition(b" ")
        if not separator or not length.isdigit():
            raise UnsafeArchive("a pax header is malformed")
        record, raw = raw[: int(length)], raw[int(length) :]
        key, equals, value = record[len(length) + 1 : -1].partition(b"=")
        if len(record) != int(length) or record[-1:] != b"\n" or not equals or not key:
            raise UnsafeArchive("a pax header is malformed")
        records[key] = value
    return records
