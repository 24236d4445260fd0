"""Frames of a WebSocket, one way (RFC 6455, 5): headers are judged and written anew, payloads pass as they come.

Nothing is held but a header, so a frame costs no memory; its size is limited all the same, for whoever receives it. Extensions are never
agreed on, so reserved bits are zero and a size is a size.
"""

from __future__ import annotations

from typing import Literal

_CONTINUATION, _TEXT, _BINARY, _CLOSE, _PING, _PONG = 0, 1, 2, 8, 9, 10
_KNOWN = frozenset({_CONTINUATION, _TEXT, _BINARY, _CLOSE, _PING, _PONG})

Fault = Literal["reserved", "opcode", "mask", "control", "length", "too_large", "continuation", "after_close"]


class BadFrame(ValueError):
    """Not a frame that may pass. fault: a stable word."""

    def __init__(self, fault: Fault, message: str) -> None:
        super().__init__(message)
        self.fault: Fault = fault


class Frames:
    """One direction. masked: frames of a client are, those of a server are not. closed: a close frame has passed whole."""

    def __init__(self, *, masked: bool, most: int) -> None:
        self._masked = masked
        self._most = most
        self._head = bytearray()
        self._left = 0  # of the payload, the mask included
        self._within = False  # a message that goes on
        self._closing = False
        self.closed = False

    def receive(self, data: bytes) -> bytes:
        """What may be sent on of that. BadFrame."""
        passed: list[bytes] = []
        at = 0
        while at < len(data):
            if self._left:
                piece = data[at : at + self._left]
                passed.append(piece)
                self._left -= len(piece)
                at += len(piece)
                self.closed = self.closed or (self._closing and not self._left)
                continue
            if self._closing:
                raise BadFrame("after_close", "a frame after the last one")
            size = self._size()
            piece = data[at : at + size - len(self._head)]
            self._head += piece
            at += len(piece)
            if len(self._head) == size == self._size():
                passed.append(self._begin(bytes(self._head)))
                self._head.clear()
        return b"".join(passed)

    @property
    def between(self) -> bool:
        """Whether all that has passed is whole messages."""
        return not (self._left or self._within or self._head)

    def _size(self) -> int:
        """Bytes of the header, as far as can be told."""
        if len(self._head) < 2:
            return 2
        length = self._head[1] & 0x7F
        return 10 if length == 127 else 4 if length == 126 else 2

    def _begin(self, head: bytes) -> bytes:
        final, opcode = bool(head[0] & 0x80), head[0] & 0x0F
        if head[0] & 0x70:
            raise BadFrame("reserved", "reserved bits are set")
        if opcode not in _KNOWN:
            raise BadFrame("opcode", f"opcode {opcode} means nothing")
        if bool(head[1] & 0x80) is not self._masked:
            raise BadFrame("mask", "a mask where none must be, or none where one must be")
        short = head[1] & 0x7F
        length = short if len(head) == 2 else int.from_bytes(head[2:], "big")
        if (len(head) == 4 and length < 126) or (len(head) == 10 and (length < 65_536 or length >> 63)):
            raise BadFrame("length", "a length that is not written in its shortest form")
        if opcode >= _CLOSE and (not final or length > 125):
            raise BadFrame("control", "a control frame in pieces, or a long one")
        if opcode == _CLOSE and length == 1:
            raise BadFrame("control", "half a status")
        if length > self._most:
            raise BadFrame("too_large", f"a frame of {length} bytes, at most {self._most} are let through")
        if opcode < _CLOSE:
            if (opcode == _CONTINUATION) is not self._within:
                raise BadFrame("continuation", "a message within another, or the middle of none")
            self._within = not final
        self._closing = opcode == _CLOSE
        self._left = length + (4 if self._masked else 0)
        self.closed = self._closing and not self._left
        return head
