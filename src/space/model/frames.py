"""The HTTP process stream: binary frames between server and SDK (docs/protocol.md, section 4). Bytes in, frames out."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum

MEDIA_TYPE = "application/vnd.space.frames"
PROCESS_MEDIA_TYPE = "application/vnd.space.process"
MAX_PAYLOAD = 1 << 20
_HEADER = struct.Struct("<IB3xQ")


class Kind(IntEnum):
    """What a frame carries; `EXIT`, `ERROR` or `PAUSE` ends the stream."""

    START = 1
    STDOUT = 2
    STDERR = 3
    EXIT = 4
    HEARTBEAT = 5
    ERROR = 6
    GAP = 7
    PAUSE = 8
    # from the client, on a WebSocket
    STDIN = 16
    STDIN_END = 17
    RESIZE = 18
    SIGNAL = 19


@dataclass(frozen=True, slots=True)
class Frame:
    """One frame. offset: bytes of that output produced before this frame."""

    kind: Kind
    offset: int
    payload: bytes


def encode(kind: Kind, payload: bytes = b"", offset: int = 0) -> bytes:
    """The frame's bytes."""
    return _HEADER.pack(len(payload), kind, offset) + payload


class Decoder:
    """Feed it what arrives; it returns whole frames. ValueError on bytes that are no frame."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    @property
    def pending(self) -> int:
        """Bytes of a frame that has not ended yet."""
        return len(self._buffer)

    def partial(self) -> Frame | None:
        """What has arrived of a frame that has not ended, if some of its payload has: all that there will be when the link broke."""
        if len(self._buffer) <= _HEADER.size:
            return None
        _, kind, offset = _HEADER.unpack_from(self._buffer)
        return Frame(Kind(kind), offset, bytes(self._buffer[_HEADER.size :]))

    def receive(self, data: bytes) -> list[Frame]:
        """The frames that are whole with `data`."""
        self._buffer += data
        frames: list[Frame] = []
        at = 0
        while len(self._buffer) - at >= _HEADER.size:
            length, kind, offset = _HEADER.unpack_from(self._buffer, at)
            if length > MAX_PAYLOAD or self._buffer[at + 5 : at + 8] != b"\0\0\0":
                raise ValueError(f"not a process frame: kind {kind}, length {length}")
            end = at + _HEADER.size + length
            if len(self._buffer) < end:
                break
            frames.append(Frame(Kind(kind), offset, bytes(self._buffer[at + _HEADER.size : end])))
            at = end
        del self._buffer[:at]
        return frames
