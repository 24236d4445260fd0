"""Frames of one side of an HTTP/2 connection, cut out of its bytes before any library sees them (RFC 9113, 4 and 6).

    FrameReader(preface=True).receive(data) -> [Frame]          BadFrames: end the connection with its code

The `h2` library says nothing of empty or continued frames, and takes nothing any more once the peer has said GOAWAY, although the streams
before it go on (6.8). So frames are counted and sorted here, and given to it one by one.
"""

from __future__ import annotations

from typing import NamedTuple

DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(10)
ALTSVC, ORIGIN, PRIORITY_UPDATE = 10, 12, 16
END_STREAM, ACK, END_HEADERS, PADDED = 1, 1, 4, 8
NO_ERROR, PROTOCOL_ERROR, INTERNAL_ERROR, FLOW_CONTROL_ERROR, FRAME_SIZE_ERROR = 0, 1, 2, 3, 6
REFUSED_STREAM, CANCEL, COMPRESSION_ERROR, ENHANCE_YOUR_CALM = 7, 8, 9, 11
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
MOST_FRAME = 16_384
MOST_BLOCK = 65_536  # of a head, compressed, over all its frames
MOST_CONTINUED = 16


class BadFrames(ValueError):
    """Not frames that may follow one another. reason: a stable word. code: of the GOAWAY that says so."""

    def __init__(self, reason: str, message: str, code: int = PROTOCOL_ERROR) -> None:
        super().__init__(message)
        self.reason = reason
        self.code = code


class Frame(NamedTuple):
    """One of them. raw: all of it, header and padding included."""

    kind: int
    flags: int
    stream: int
    raw: bytes

    @property
    def payload(self) -> bytes:
        return self.raw[9:]

    @property
    def content(self) -> int:
        """Bytes of a DATA frame that are not padding."""
        length = len(self.raw) - 9
        return length - 1 - self.raw[9] if self.flags & PADDED and length else length


class FrameReader:
    """preface: whether a client's comes first. frames: how many have come."""

    def __init__(self, *, preface: bool) -> None:
        self._preface = PREFACE if preface else b""
        self._buffer = bytearray()
        self._settled = False
        self.frames = 0
        self._block = 0  # the stream whose head goes on
        self._size = self._continued = 0

    @property
    def waiting(self) -> bool:
        """A head, or a frame that is not of data, has begun and is not whole."""
        return bool(self._block) or not self._settled or (bool(self._buffer) and self._buffer[3:4] != bytes([DATA]))

    def receive(self, data: bytes) -> list[Frame]:
        """The frames that are whole. BadFrames."""
        buffer = self._buffer
        buffer += data
        if self._preface:
            if not self._preface.startswith(buffer[: len(self._preface)]):
                raise BadFrames("preface", "a connection that does not begin as HTTP/2 does")
            if len(buffer) < len(self._preface):
                return []
            del buffer[: len(self._preface)]
            self._preface = b""
        frames: list[Frame] = []
        at = 0
        while len(buffer) - at >= 9:
            size = int.from_bytes(buffer[at : at + 3], "big")
            if size > MOST_FRAME:
                raise BadFrames("frame_size", f"a frame of {size} bytes, at most {MOST_FRAME} were offered", FRAME_SIZE_ERROR)
            if len(buffer) - at < 9 + size:
                break
            stream = int.from_bytes(buffer[at + 5 : at + 9], "big") & 0x7FFF_FFFF
            frame = Frame(buffer[at + 3], buffer[at + 4], stream, bytes(buffer[at : at + 9 + size]))
            self._check(frame)
            frames.append(frame)
            at += 9 + size
        self.frames += len(frames)
        del buffer[:at]
        return frames

    def _check(self, frame: Frame) -> None:
        if not self._settled:
            if frame.kind != SETTINGS or frame.flags & ACK:
                raise BadFrames("preface", "the first frame is not SETTINGS")
            self._settled = True
        if self._block:
            if frame.kind != CONTINUATION or frame.stream != self._block:
                raise BadFrames("continuation", "another frame in the middle of a head")
            self._size += len(frame.raw) - 9
            self._continued += 1
        elif frame.kind == CONTINUATION:
            raise BadFrames("continuation", "the middle of a head that has not begun")
        elif frame.kind == HEADERS:
            self._size, self._continued = len(frame.raw) - 9, 0
        else:
            return
        if self._size > MOST_BLOCK or self._continued > MOST_CONTINUED:
            raise BadFrames("flood_head", f"a head of more than {MOST_BLOCK} bytes or {MOST_CONTINUED} more frames", ENHANCE_YOUR_CALM)
        self._block = 0 if frame.flags & END_HEADERS else frame.stream
        if not self._block and not frame.flags & END_HEADERS:
            raise BadFrames("stream", "a head on no stream")
