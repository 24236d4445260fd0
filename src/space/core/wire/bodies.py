"""Bodies of HTTP/1.1 messages, taken out of their framing piece by piece (RFC 9112, 6 and 7). No body is ever held whole.

    body.receive(data) -> [pieces]     body.ended, body.rest (what came behind it)     BadBody: close both sides

Chunks are read as strictly as heads: sizes are hexadecimal digits and nothing else, extensions and trailers are checked and dropped.
"""

from __future__ import annotations

import re
from typing import Literal

from space.core.wire.http1 import BadHead, Framing

_SIZE = re.compile(rb"([0-9A-Fa-f]{1,15})((?:;[\t\x20-\x7e\x80-\xff]*)?)\Z")
_MOST_SIZE_LINE = 1024
_MOST_TRAILERS = 8192
_TRAILER = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+:[\t\x20-\x7e\x80-\xff]*\Z")


class BadBody(BadHead):
    """A body that breaks its framing."""


class Body:
    """A body of one message. extensions: whether chunk extensions are let pass (an upstream's are, dropped; a guest's are refused)."""

    def __init__(self, framing: Framing, *, extensions: bool = False) -> None:
        self._left = framing.length or 0
        self._kind = framing.kind
        self._extensions = extensions
        self._state: Literal["size", "data", "end", "trailers"] = "size"
        self._line = bytearray()
        self._trailers = 0
        self.taken = 0  # bytes of content so far
        self.ended = framing.kind == "none" or (framing.kind == "length" and not self._left)
        self.rest = b""

    def receive(self, data: bytes) -> list[bytes]:
        """The content that is in `data`. BadBody."""
        if self.ended:
            self.rest += data
            return []
        match self._kind:
            case "close":
                pieces = [data] if data else []
            case "length":
                pieces = [data[: self._left]] if data else []
                if len(data) < self._left:
                    self._left -= len(data)
                else:
                    self._finish(data[self._left :])
                    self._left = 0
            case _:
                pieces = self._chunks(data)
        self.taken += len(pieces[0]) if len(pieces) == 1 else sum(map(len, pieces))
        return pieces

    def eof(self) -> None:
        """The peer has closed. BadBody when the body is not over by that."""
        if self._kind == "close":
            self.ended = True
        elif not self.ended:
            raise BadBody("cut_off", "the connection ended in the middle of a body", 502)

    def _finish(self, rest: bytes) -> None:
        self.ended = True
        self.rest = rest

    def _chunks(self, data: bytes) -> list[bytes]:
        pieces: list[bytes] = []
        at = 0
        while at < len(data) and not self.ended:
            if self._state == "data":
                piece = data[at : at + self._left]
                pieces.append(piece)
                at += len(piece)
                self._left -= len(piece)
                if not self._left:
                    self._state = "end"
                continue
            end = data.find(b"\n", at)
            self._line += data[at:] if end < 0 else data[at : end + 1]
            at = len(data) if end < 0 else end + 1
            if self._state == "end" and not b"\r\n".startswith(self._line):
                raise BadBody("chunk", "a chunk that is longer than its size")
            if len(self._line) > _MOST_SIZE_LINE:
                raise BadBody("chunk", f"a line of more than {_MOST_SIZE_LINE} bytes between chunks")
            if end >= 0:
                line = bytes(self._line)
                self._line.clear()
                self._take(line)
        if self.ended:
            self.rest = data[at:]
        return pieces

    def _take(self, line: bytes) -> None:
        if not line.endswith(b"\r\n"):
            raise BadBody("chunk", "a line feed without carriage return between chunks")
        line = line[:-2]
        match self._state:
            case "size":
                self._size(line)
            case "end":
                self._state = "size"
            case _:
                self._trailer(line)

    def _size(self, line: bytes) -> None:
        found = _SIZE.match(line)
        if found is None or (found[2] and not self._extensions):
            raise BadBody("chunk", "a chunk's size that is not hexadecimal digits")
        self._left = int(found[1], 16)
        self._state = "data" if self._left else "trailers"

    def _trailer(self, line: bytes) -> None:
        if not line:
            self.ended = True
            return
        self._trailers += len(line)
        if not _TRAILER.match(line) or self._trailers > _MOST_TRAILERS:
            raise BadBody("trailer", "a trailer that is no field, or too many of them")


def chunk(piece: bytes) -> bytes:
    """A piece as a chunk; the empty one ends the body."""
    return b"%x\r\n%s\r\n" % (len(piece), piece)
