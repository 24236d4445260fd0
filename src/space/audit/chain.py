"""A hash chain over lines of JSON, and what is wrong with one. Bytes in, bytes and findings out.

    line   {"n": 7, ...fields..., "h": "<hex SHA-256 of the previous line's hash and of this line without h>"} and a line feed
    head   {"writer": "gateway", "n": 7, "h": "...", "mac": "<hex authentication by the broker's key>"}
    base   the same shape: the records up to n were removed on purpose, and the chain goes on behind the hash h

Whoever can write the file can write a chain, so the chain alone proves nothing: its head (count and hash) is authenticated with a key
that the writer does not have, and kept outside of the file once a second and at the end. What was written after the last head and before
a crash is told apart: it is chained, but nobody vouches for it.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import msgspec

START = bytes(32)
MOST_LINE = 65_536
_ENCODER = msgspec.json.Encoder(order="deterministic")


class Writer:
    """The end of one chain. writer: whose chain it is; part of every head, so that one cannot stand for another."""

    def __init__(self, writer: str, count: int = 0, last: bytes = START) -> None:
        self.writer = writer
        self.count = count
        self.last = last

    def line(self, fields: Mapping[str, Any] | bytes) -> bytes:
        """The next line. fields: or their JSON (`body_of`), which is not looked into. ValueError for a line that is too long."""
        told = fields if isinstance(fields, bytes) else body_of(fields)
        body = (b'{"n":%d,' if len(told) > 2 else b'{"n":%d') % (self.count + 1) + told[1:]
        if len(body) > MOST_LINE:
            raise ValueError(f"a record of {len(body)} bytes, at most {MOST_LINE} are possible")
        made = hashlib.sha256(self.last + body)
        self.last = made.digest()
        self.count += 1
        return b'%s,"h":"%s"}\n' % (body[:-1], made.hexdigest().encode())

    def copy(self) -> Writer:
        """Another one at the same place: for lines that may turn out not to be written."""
        return Writer(self.writer, self.count, self.last)

    def head(self, mac: Callable[[bytes], bytes]) -> bytes:
        """What is kept elsewhere. mac: the broker's authentication of (writer, count, hash)."""
        return head_line(self.writer, self.count, self.last, mac(statement(self.writer, self.count, self.last)))


def body_of(fields: Mapping[str, Any]) -> bytes:
    """The JSON of a record's fields. ValueError for those that the chain itself uses."""
    if "n" in fields or "h" in fields:
        raise ValueError("n and h are the chain's own fields")
    return _ENCODER.encode(fields)


class Holds(Protocol):
    """Whoever can tell whether a code is the broker's of that data."""

    def holds(self, data: bytes, mac: bytes, /) -> bool: ...


class Mac:
    """HMAC-SHA-256 under one key, which has no `repr`."""

    __slots__ = ("_key",)

    def __init__(self, key: bytes) -> None:
        if len(key) < 32:
            raise ValueError("the key of an audit head has 32 bytes at least")
        self._key = key

    def __call__(self, data: bytes) -> bytes:
        return hmac.digest(self._key, data, "sha256")

    def holds(self, data: bytes, mac: bytes) -> bool:
        """Whether it is the one of that data."""
        return hmac.compare_digest(self(data), mac)


def statement(writer: str, count: int, last: bytes) -> bytes:
    """What a head says, as it is authenticated: no two heads are the same bytes."""
    return b"space audit head\0" + writer.encode() + b"\0" + count.to_bytes(8, "big") + last


def base_statement(writer: str, count: int, last: bytes) -> bytes:
    """What a base says: records up to there were removed on purpose. Never the bytes of a head."""
    return b"space audit base\0" + writer.encode() + b"\0" + count.to_bytes(8, "big") + last


def head_line(writer: str, count: int, last: bytes, mac: bytes) -> bytes:
    """A head as it is kept."""
    return _ENCODER.encode({"writer": writer, "n": count, "h": last.hex(), "mac": mac.hex()}) + b"\n"


Problem = Literal[
    "not_a_record", "out_of_order", "changed", "torn", "cut_off",
    "head_missing", "head_forged", "head_of_another", "head_old", "base_forged",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that is wrong. line: counted from 1; 0 for the head. `torn` is a crash's mark and no hand's: an incomplete last line."""

    problem: Problem
    line: int
    message: str


@dataclass(frozen=True, slots=True)
class Verified:
    """records: chained and vouched for by the head. unvouched: chained, written after it. last: the hash at the end of what is good."""

    records: int
    unvouched: int
    last: bytes
    findings: tuple[Finding, ...]

    @property
    def intact(self) -> bool:
        """Whether nothing was removed, changed or put in another order. A torn last line alone is a crash."""
        return all(finding.problem == "torn" for finding in self.findings)


def verify(
    lines: Iterable[bytes],
    head: bytes | None,
    writer: str,
    mac: Holds,
    *,
    base: bytes | None = None,
    floor: tuple[int, bytes] | None = None,
) -> Verified:
    """What a chain is worth. lines: as they lie in the file, each with its end; of rotated files all, oldest first.

    base: what says that the beginning was removed on purpose. floor: (count, hash) up to which the broker itself remembers to have vouched;
    with it, files that were put back together with their older head are found as well.
    The first thing that is wrong ends the reading: what comes behind it is chained to nothing.
    """
    vouched, problem = _head(head, writer, mac, statement)
    findings = [] if problem is None else [problem]
    if floor is not None and floor[0] and (vouched is None or floor[0] > vouched[0]):
        vouched = floor
    last, count = START, 0
    if base is not None:
        begin, problem = _head(base, writer, mac, base_statement)
        if begin is None:
            return Verified(0, 0, START, (*findings, Finding("base_forged", 0, "what says that records were removed is not the broker's")))
        count, last = begin
        if vouched is not None and vouched[0] < count:
            old = f"the head vouches for {vouched[0]} records, and {count} were removed after it"
            return Verified(0, 0, START, (*findings, Finding("head_old", 0, old)))
    at_head = vouched == (count, last)
    for number, line in enumerate(lines, 1):
        if not line.endswith(b"\n"):
            findings.append(Finding("torn", number, "the last line is incomplete: its writer died in the middle of it"))
            break
        body, told = _taken_apart(line)
        if body is None or told is None:
            findings.append(Finding("not_a_record", number, f"line {number} is no record"))
            break
        if _number(body) != count + 1:
            findings.append(Finding("out_of_order", number, f"record {_number(body)} stands where {count + 1} should be"))
            break
        if not hmac.compare_digest(_next(last, body), told):
            findings.append(Finding("changed", number, f"record {count + 1} is not what was written, or what was before it is not"))
            break
        last, count = told, count + 1
        if vouched is not None and vouched == (count, last):
            at_head = True
        elif vouched is not None and vouched[0] == count:
            findings.append(Finding("changed", number, f"record {count} is not the one that its head vouches for"))
            break
    if (
        vouched is not None
        and not at_head
        and not any(finding.problem in ("changed", "out_of_order", "not_a_record") for finding in findings)
    ):
        findings.append(Finding("cut_off", 0, f"the head vouches for {vouched[0]} records, and {count} are there"))
    sure = vouched[0] if vouched is not None and at_head else 0
    return Verified(sure, count - sure, last, tuple(findings))


def ending(line: bytes) -> tuple[int, bytes]:
    """(count, hash) of a record by itself, which proves nothing. ValueError when it is none."""
    body, told = _taken_apart(line)
    number = -1 if body is None else _number(body)
    if told is None or not 0 < number < 1 << 63:
        raise ValueError("the line is no record")
    return number, told


def resume(lines: Iterable[bytes], writer: str, *, after: tuple[int, bytes] = (0, START)) -> Writer:
    """The end of a file's chain, to go on from after a crash; a torn last line is left out (the caller cuts it off). ValueError.

    after: what the file follows, the end of the one before it.
    """
    count, last = after
    for line in lines:
        if not line.endswith(b"\n"):
            break
        body, told = _taken_apart(line)
        if body is None or told is None or _number(body) != count + 1 or _next(last, body) != told:
            raise ValueError(f"record {count + 1} does not belong to the chain")
        last, count = told, count + 1
    return Writer(writer, count, last)


def _next(last: bytes, body: bytes) -> bytes:
    return hashlib.sha256(last + body).digest()


_TAIL = len(b',"h":"') + 64 + len(b'"}\n')


def _taken_apart(line: bytes) -> tuple[bytes | None, bytes | None]:
    """(the line without its hash, the hash); None for what is none. No JSON is read: the bytes are what was hashed."""
    if len(line) <= _TAIL or line[-_TAIL : -_TAIL + 6] != b',"h":"' or not line.endswith(b'"}\n'):
        return None, None
    try:
        return line[:-_TAIL] + b"}", bytes.fromhex(line[-_TAIL + 6 : -3].decode("ascii"))
    except ValueError:
        return None, None


def _number(body: bytes) -> int:
    try:
        found = msgspec.json.decode(body)
    except (msgspec.MsgspecError, RecursionError):
        return -1
    number = found.get("n") if isinstance(found, dict) else None
    return number if isinstance(number, int) else -1


class _Head(msgspec.Struct, forbid_unknown_fields=True):
    writer: str
    n: int
    h: str
    mac: str


def _head(
    head: bytes | None, writer: str, mac: Holds, says: Callable[[str, int, bytes], bytes]
) -> tuple[tuple[int, bytes] | None, Finding | None]:
    if head is None:
        return None, Finding("head_missing", 0, "there is no head: nobody vouches for any record")
    try:
        told = msgspec.json.decode(head, type=_Head)
        count, last, code = told.n, bytes.fromhex(told.h), bytes.fromhex(told.mac)
    except (msgspec.MsgspecError, ValueError):
        return None, Finding("head_forged", 0, "the head is no head")
    if told.writer != writer:
        return None, Finding("head_of_another", 0, f"the head is of {told.writer[:40]!r} and not of {writer!r}")
    if len(last) != 32 or not 0 <= count < 1 << 63 or not mac.holds(says(writer, count, last), code):
        return None, Finding("head_forged", 0, "the head was not authenticated by this broker")
    return (count, last), None
