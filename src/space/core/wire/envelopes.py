"""The Connect protocol's envelopes: a flag byte, a length (big-endian u32), and so many bytes of JSON.

A decoder takes bytes as they come and holds at most one envelope of `most` bytes: a length beyond that is refused before anything of
it is kept.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

COMPRESSED = 0x01
END = 0x02
_HEAD = struct.Struct(">BI")


class BadEnvelope(ValueError):
    """The bytes are no envelopes; the sentence says why."""


@dataclass(frozen=True, slots=True)
class Envelope:
    """One. flags: COMPRESSED, END."""

    flags: int
    payload: bytes

    @property
    def ends(self) -> bool:
        """Whether it is the stream's last."""
        return bool(self.flags & END)


def encode(payload: bytes, flags: int = 0) -> bytes:
    """An envelope's bytes."""
    return _HEAD.pack(flags, len(payload)) + payload


class Decoder:
    """Bytes in, envelopes out."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._held = bytearray()
        self._ended = False

    @property
    def pending(self) -> int:
        """Bytes of an envelope that is not whole."""
        return len(self._held)

    def feed(self, data: bytes) -> list[Envelope]:
        """What is whole now. BadEnvelope."""
        self._held += data
        found: list[Envelope] = []
        at = 0
        while len(self._held) - at >= _HEAD.size:
            flags, length = _HEAD.unpack_from(self._held, at)
            if self._ended:
                raise BadEnvelope("something comes behind the stream's last envelope")
            if flags & ~(COMPRESSED | END):
                raise BadEnvelope(f"an envelope has the flags 0x{flags:02x}, of which only 0x01 and 0x02 are known")
            if length > self._most:
                raise BadEnvelope(f"an envelope of {length} bytes is larger than {self._most}")
            end = at + _HEAD.size + length
            if end > len(self._held):
                break
            found.append(Envelope(flags, bytes(self._held[at + _HEAD.size : end])))
            self._ended = found[-1].ends
            at = end
        del self._held[:at]
        if self._ended and self._held:
            raise BadEnvelope("something comes behind the stream's last envelope")
        return found
