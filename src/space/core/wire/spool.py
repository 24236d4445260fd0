"""The records of a spool: what a process wrote and how it ended, as bytes that can be cut off anywhere and are read again up to there.

    0     4  length of the payload, at most 1 MiB
    4     1  kind: 1 head, 2 output, 3 input, 4 end
    5     1  lane (output: 0 stdout, 1 stderr; else 0)
    6     2  zero
    8     8  offset (output: bytes of that lane before this record; else 0)
    16    n  payload: bytes of output, or MessagePack of `Head`, `Input`, `End`
    16+n  4  CRC-32 of all before

A segment is a head, then the others; the end is the last record of the last segment and is followed by a footer (magic, u32 size of its
record), so that whoever opens the file sees from its tail that nothing is missing. Bytes in, records out; no I/O, no errors: bytes that are
no record end the reading.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from typing import NamedTuple, TypeVar

import msgspec

HEAD, OUTPUT, INPUT, END = 1, 2, 3, 4
MAX_PAYLOAD = 1 << 20
_HEADER = struct.Struct("<IBBHQ")
_CRC = struct.Struct("<I")
_FOOTER = struct.Struct("<8sI")
_MAGIC = b"SPOOLEND"
OVERHEAD = _HEADER.size + _CRC.size
FOOTER = _FOOTER.size

S = TypeVar("S", bound=msgspec.Struct)
Buffer = bytes | bytearray | memoryview


class Head(msgspec.Struct, frozen=True):
    """What a segment begins with: the process, and where in its output the segment begins.

    tied: it is killed when its client leaves. quota: bytes of spool. The environment is not here: it may hold secrets.
    """

    process: str
    pid: int
    argv: list[bytes]
    cwd: str | None
    user: str | None
    pty: bool
    stdin: bool
    started_us: int
    tied: bool
    block: bool
    quota: int
    stdout: int = 0
    stderr: int = 0
    stdin_bytes: int = 0
    stdin_closed: bool = False


class Input(msgspec.Struct, frozen=True):
    """What of its standard input the process's machine has taken."""

    bytes: int
    closed: bool


class End(msgspec.Struct, frozen=True):
    """How it ended: an exit (one of code and signal), or lost for a reason. stdout, stderr: all that is in the spool."""

    ended_us: int
    stdout: int
    stderr: int
    stdin_bytes: int
    code: int | None = None
    signal: int | None = None
    oom_killed: bool = False
    timed_out: bool = False
    stdout_bytes: int = 0
    stderr_bytes: int = 0
    wall_ms: int = 0
    reason: str | None = None


class Record(NamedTuple):
    """One record. end: the position behind it."""

    kind: int
    lane: int
    offset: int
    payload: bytes
    end: int


class Scan(NamedTuple):
    """What a segment holds up to `size`, where its first bytes that are no record begin."""

    head: Head
    stdout: int
    stderr: int
    input: Input
    end: End | None
    size: int


def encode(kind: int, payload: Buffer, lane: int = 0, offset: int = 0) -> bytes:
    """The record's bytes."""
    body = b"".join((_HEADER.pack(len(payload), kind, lane, 0, offset), payload))
    return body + _CRC.pack(zlib.crc32(body))


def encode_struct(kind: int, value: msgspec.Struct) -> bytes:
    """A head, input or end; with an end, the footer."""
    record = encode(kind, msgspec.msgpack.encode(value))
    return record + _FOOTER.pack(_MAGIC, len(record)) if kind == END else record


def records(data: Buffer, at: int = 0) -> Iterator[Record]:
    """The records that are whole and right, from position `at` up to the first that is not."""
    view = memoryview(data)
    while len(view) - at >= OVERHEAD:
        length, kind, lane, zero, offset = _HEADER.unpack_from(view, at)
        end = at + OVERHEAD + length
        if length > MAX_PAYLOAD or not HEAD <= kind <= END or lane > (kind == OUTPUT) or zero or end > len(view):
            return
        if zlib.crc32(view[at : end - _CRC.size]) != _CRC.unpack_from(view, end - _CRC.size)[0]:
            return
        yield Record(kind, lane, offset, bytes(view[at + _HEADER.size : end - _CRC.size]), end)
        at = end


def head_size(data: Buffer) -> int:
    """How many bytes the first record of a file has that begins with `data` (16 bytes at least); 0 when that is no head."""
    if len(data) < _HEADER.size:
        return 0
    length, kind, *_ = _HEADER.unpack_from(data)
    return OVERHEAD + length if kind == HEAD and length <= MAX_PAYLOAD else 0


def read_head(data: Buffer) -> Head | None:
    """The head that a segment begins with; None when it is torn."""
    record = next(records(data), None)
    return _struct(Head, record) if record is not None and record.kind == HEAD else None


def read_end(tail: Buffer) -> End | None:
    """The end of a file whose last bytes these are; None when they hold no whole end."""
    if len(tail) < FOOTER:
        return None
    magic, size = _FOOTER.unpack_from(tail, len(tail) - FOOTER)
    at = len(tail) - FOOTER - size
    if magic != _MAGIC or at < 0:
        return None
    record = next(records(tail, at), None)
    return _struct(End, record) if record is not None and record.kind == END and record.end == len(tail) - FOOTER else None


def scan(data: Buffer) -> Scan | None:
    """What a segment holds, up to what is torn (an end without its footer is); None when even its head is."""
    view = memoryview(data)
    found = records(view)
    first = next(found, None)
    head = _struct(Head, first) if first is not None and first.kind == HEAD else None
    if first is None or head is None:
        return None
    lanes, taken, size = [head.stdout, head.stderr], Input(head.stdin_bytes, head.stdin_closed), first.end
    for record in found:
        if record.kind == OUTPUT and record.offset == lanes[record.lane]:
            lanes[record.lane] += len(record.payload)
        elif record.kind == INPUT and (said := _struct(Input, record)) is not None:
            taken = said
        elif record.kind == END and (end := read_end(view[: record.end + FOOTER])) is not None and [end.stdout, end.stderr] == lanes:
            return Scan(head, lanes[0], lanes[1], taken, end, record.end + FOOTER)
        else:  # whole, but not what comes next
            break
        size = record.end
    return Scan(head, lanes[0], lanes[1], taken, None, size)


def _struct(kind: type[S], record: Record) -> S | None:
    try:
        return msgspec.msgpack.decode(record.payload, type=kind)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None
