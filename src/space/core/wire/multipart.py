"""Bodies of multipart/form-data (RFC 7578) as a stream of events: a part begins, some of its bytes, it ends.

Nothing is held but the beginning of what may be a boundary, and a part's head, both bounded. What is no such body is refused; lines are as
those who send them have them: a part's name and file name in quotes or without, percent escapes only for quote, CR and LF (as HTML says).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum, auto

MOST_HEAD = 16 * 1024
MOST_PARTS = 10_000
_MOST_PREAMBLE = 4096
_BOUNDARY = re.compile(r"[0-9A-Za-z'()+_,\-./:=? ]{0,69}[0-9A-Za-z'()+_,\-./:=?]\Z")
_PARAMETER = re.compile(rb';[ \t]*([A-Za-z0-9_*-]+)[ \t]*=[ \t]*(?:"((?:[^"\\]|\\.)*)"|([^\s;"]*))[ \t]*', re.DOTALL)
_ESCAPES = {b"%22": b'"', b"%0D": b"\r", b"%0A": b"\n", b"%0d": b"\r", b"%0a": b"\n"}


class BadMultipart(ValueError):
    """The body is not what its head says; the sentence says why."""


@dataclass(frozen=True, slots=True)
class Part:
    """A part begins. file_name: None for a plain field."""

    name: bytes
    file_name: bytes | None


@dataclass(frozen=True, slots=True)
class Piece:
    """Bytes of the part."""

    data: bytes


@dataclass(frozen=True, slots=True)
class PartEnd:
    """The part is whole."""


Event = Part | Piece | PartEnd


def boundary_of(content_type: str) -> bytes:
    """The boundary that a Content-Type names. BadMultipart."""
    media, _, rest = content_type.partition(";")
    if media.strip().lower() != "multipart/form-data":
        raise BadMultipart(f"{media.strip()[:80]!r} is not multipart/form-data")
    found = dict(_parameters(b";" + rest.encode("latin-1", "replace"))).get(b"boundary", b"").decode("latin-1")
    if not _BOUNDARY.match(found):
        raise BadMultipart("the Content-Type names no boundary of 1 to 70 characters")
    return found.encode()


class _State(Enum):
    PREAMBLE = auto()
    BEHIND = auto()  # a boundary: what comes says whether it was the last
    HEAD = auto()
    BODY = auto()
    OVER = auto()


class Decoder:
    """Bytes in, events out."""

    def __init__(self, boundary: bytes) -> None:
        self._delimiter = b"\r\n--" + boundary
        self._held = bytearray(b"\r\n")  # the first boundary may begin the body
        self._state = _State.PREAMBLE
        self._parts = 0
        self._passed = 0

    def feed(self, data: bytes) -> list[Event]:
        """What is known now. BadMultipart."""
        if self._state is _State.OVER:
            return []
        self._held += data
        events: list[Event] = []
        while self._step(events):
            pass
        return events

    def end(self) -> None:
        """There is no more. BadMultipart when the last boundary has not come."""
        if self._state is not _State.OVER:
            raise BadMultipart("the body ends before its last boundary")

    def _step(self, events: list[Event]) -> bool:
        match self._state:
            case _State.PREAMBLE | _State.BODY:
                return self._seek(events)
            case _State.BEHIND:
                return self._behind()
            case _State.HEAD:
                return self._head(events)
            case _State.OVER:
                self._held.clear()
                return False

    def _seek(self, events: list[Event]) -> bool:
        """As far as the next boundary, or as what can be no part of one."""
        at = self._held.find(self._delimiter)
        end = at if at >= 0 else self._safe()
        if self._state is _State.PREAMBLE:
            self._passed += end
            if self._passed > _MOST_PREAMBLE:
                raise BadMultipart(f"no boundary comes in the first {_MOST_PREAMBLE} bytes")
        elif end:
            events.append(Piece(bytes(self._held[:end])))
        if at < 0:
            del self._held[:end]
            return False
        del self._held[: at + len(self._delimiter)]
        if self._state is _State.BODY:
            events.append(PartEnd())
        self._state = _State.BEHIND
        return True

    def _safe(self) -> int:
        """How much of what is held can be no beginning of a boundary."""
        first = max(0, len(self._held) - len(self._delimiter) + 1)
        at = self._held.find(b"\r", first)
        while at >= 0:
            if self._delimiter.startswith(self._held[at:]):
                return at
            at = self._held.find(b"\r", at + 1)
        return len(self._held)

    def _behind(self) -> bool:
        if len(self._held) < 2:
            return False
        if self._held.startswith(b"--"):
            self._state = _State.OVER
            return True
        if not self._held.startswith(b"\r\n"):
            raise BadMultipart("behind a boundary comes no end of line")
        self._parts += 1
        if self._parts > MOST_PARTS:
            raise BadMultipart(f"there are more than {MOST_PARTS} parts")
        self._state = _State.HEAD
        return True

    def _head(self, events: list[Event]) -> bool:
        # What is held begins with the end of the boundary's line, so that a head without lines is no special case.
        at = self._held.find(b"\r\n\r\n", 0, MOST_HEAD)
        if at < 0:
            if len(self._held) >= MOST_HEAD:
                raise BadMultipart(f"a part's head is larger than {MOST_HEAD} bytes")
            return False
        events.append(_part(bytes(self._held[2:at])))
        del self._held[: at + 4]
        self._state = _State.BODY
        return True


def _part(head: bytes) -> Part:
    for line in head.split(b"\r\n"):
        name, colon, value = line.partition(b":")
        if not colon and line:
            raise BadMultipart("a line of a part's head has no colon")
        if name.strip().lower() != b"content-disposition":
            continue
        kind, _, rest = value.partition(b";")
        if kind.strip().lower() != b"form-data":
            raise BadMultipart("a part is no form-data")
        found = dict(_parameters(b";" + rest))
        return Part(found.get(b"name", b""), found.get(b"filename"))
    raise BadMultipart("a part has no Content-Disposition")


def _parameters(text: bytes) -> list[tuple[bytes, bytes]]:
    found: list[tuple[bytes, bytes]] = []
    at = 0
    while at < len(text):
        match = _PARAMETER.match(text, at)
        if match is None:
            if text[at:].strip(b" \t;"):
                raise BadMultipart("a header's parameters are not well formed")
            break
        name, quoted, plain = match.groups()
        value = plain if quoted is None else re.sub(rb'\\(["\\])', rb"\1", quoted)
        found.append((name.lower(), re.sub(rb"%(?:22|0[aAdD])", lambda one: _ESCAPES[one[0]], value)))
        at = match.end()
    return found
