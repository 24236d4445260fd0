"""A reply that is packed although nobody asked for it, searched for the secret as well: unpacked beside, and let go on as it is.

    wire = searching(needles, reply.fields)      a `Tripwire`: of the bytes as they are, or of what they are when unpacked

Within what is packed nothing can be overwritten. So a piece goes on once all that it unpacks to was searched and no echo may have begun in
it; one that holds an echo ends the reply (Unsearchable), as does what cannot be unpacked here: other encodings, two of them, what breaks
its own form or follows its end, and what unpacks to far more than it is.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator

from space.core.credentials.tripwire import Needles, Tripwire
from space.core.wire.http1 import BadHead, Field

_GZIP, _DEFLATE = frozenset({b"gzip", b"x-gzip"}), b"deflate"
_PIECE = 65_536  # unpacked at a time
# Bytes that those which are packed may unpack to: text packs to a tenth, a page of one letter to a thousandth.
_RATIO, _ALLOWANCE = 200, 16 << 20
_MOST_HELD = 65_536  # what waits is not acknowledged to whoever sends it, so it has to fit into a window


class Unsearchable(BadHead):
    """A reply to a request with a credential that nobody can search, or that holds one where nothing can be overwritten."""

    def __init__(self, message: str) -> None:
        super().__init__("packed", message, 502)


def searching(needles: Needles, fields: Iterable[Field]) -> Tripwire:
    """For the body of a reply with these fields. Unsearchable."""
    said = b",".join([value for name, value in fields if name == b"content-encoding"]).lower().split(b",")
    codings = [coding for word in said if (coding := word.strip()) not in (b"", b"identity")]
    if not codings:
        return Tripwire(needles)
    if len(codings) > 1 or codings[0] not in {*_GZIP, _DEFLATE}:
        raise Unsearchable(f"a reply with a credential is packed as {b', '.join(codings)[:60]!r}, which cannot be searched")
    return Packed(needles, gzip=codings[0] in _GZIP)


class Packed(Tripwire):
    """The body of a reply that says that it is packed."""

    __slots__ = ("_begun", "_bits", "_inner", "_made", "_stream", "_taken", "_waiting")

    def __init__(self, needles: Needles, *, gzip: bool) -> None:
        super().__init__(needles)
        self._inner = Tripwire(needles)
        self._bits = 16 + zlib.MAX_WBITS if gzip else zlib.MAX_WBITS
        self._stream = zlib.decompressobj(self._bits)
        self._begun = False
        self._taken = self._made = 0
        self._waiting = b""

    def receive(self, data: bytes, *, ended: bool = False) -> bytes:
        """What may go on, packed as it came. Unsearchable."""
        self._taken += len(data)
        self._waiting += data
        try:
            for piece in self._unpacked(data):
                self._inner.receive(piece)
        except zlib.error as error:
            raise Unsearchable(f"a reply that is not packed as it says: {error}") from None
        if self._inner.echoes:
            self.echoes += self._inner.echoes
            raise Unsearchable("a packed reply holds the credential")
        if self._inner.held and not ended:
            if len(self._waiting) > _MOST_HELD:
                raise Unsearchable("a packed reply may hold the credential at the end of each of its pieces")
            return b""
        return self.end()

    def end(self) -> bytes:
        """What is still held: it was none."""
        rest, self._waiting = self._waiting, b""
        return rest

    @property
    def held(self) -> int:
        """Bytes that wait for what follows, as they came."""
        return len(self._waiting)

    def _unpacked(self, data: bytes) -> Iterator[bytes]:
        if data and not self._begun:
            self._begun = True
            if self._bits == zlib.MAX_WBITS and data[0] & 0x0F != zlib.DEFLATED:  # `deflate` without its head, as some send it
                self._stream = zlib.decompressobj(-zlib.MAX_WBITS)
        piece = b""
        while data or len(piece) == _PIECE:  # a full one may have left something within
            if self._stream.eof:
                if not data:
                    return
                self._stream = zlib.decompressobj(self._bits)  # another member (RFC 1952, 2.2), or what is none breaks its form
            piece = self._stream.decompress(data, _PIECE)
            self._made += len(piece)
            if self._made > _ALLOWANCE + self._taken * _RATIO:
                raise Unsearchable(f"a reply that unpacks to more than {_RATIO} times what it is")
            yield piece
            data = self._stream.unused_data if self._stream.eof else self._stream.unconsumed_tail
