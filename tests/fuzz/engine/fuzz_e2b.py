"""Bodies that clients of E2B send: uploads of many parts and streams of envelopes. However they are cut, they mean the same."""

from __future__ import annotations

from typing import Any

from tests.fuzz.engine.cuts import Pieces, same
from tests.fuzz.engine.guided import Target

from space.core.wire import envelopes, multipart

_MOST = 4096


def fuzz_multipart(data: bytes) -> None:
    same(_parts, data)


def _parts(pieces: Pieces) -> Any:
    """Every part with its bytes; what does not end is told apart from what is wrong."""
    decoder = multipart.Decoder(b"b")
    found: list[list[Any]] = []
    inside = False
    taken = given = 0
    try:
        for piece in pieces:
            taken += len(piece)
            for event in decoder.feed(piece):
                match event:
                    case multipart.Part():
                        assert not inside, "a part begins in another"
                        inside = True
                        found.append([event, b""])
                    case multipart.Piece(more):
                        assert inside, "bytes are of a part"
                        assert more, "some come, or none are told"
                        found[-1][1] += more
                        given += len(more)
                    case multipart.PartEnd():
                        assert inside, "a part ends that has begun"
                        inside = False
            assert given <= taken, "nothing comes that was not sent"
        decoder.end()
    except multipart.BadMultipart:
        return "refused"
    assert not inside, "every part has ended"
    return found


def fuzz_envelopes(data: bytes) -> None:
    same(_envelopes, data)


def _envelopes(pieces: Pieces) -> Any:
    decoder = envelopes.Decoder(_MOST)
    found: list[envelopes.Envelope] = []
    try:
        for piece in pieces:
            some = decoder.feed(piece)
            assert all(len(one.payload) <= _MOST for one in some)
            assert decoder.pending <= _MOST + 5, "no more is held than one envelope"
            found += some
    except envelopes.BadEnvelope:
        return "refused"
    assert all(not one.ends for one in found[:-1]), "the last is the last"
    again = b"".join(envelopes.encode(one.payload, one.flags) for one in found)
    return again, decoder.pending


_HEAD = b'Content-Disposition: form-data; name="file"; filename="a"\r\n\r\n'
_BODIES = (
    b"--b\r\n" + _HEAD + b"content\r\n--b--\r\n",
    b"preamble\r\n--b\r\n" + _HEAD + b"\r\n--c\r\n-\r\n--b\r\n" + _HEAD + b"\r\n--b--epilogue",
    b'--b\r\ncontent-disposition:form-data;name=x;filename="q\\"%22"\r\nX: y\r\n\r\n\r\n--b--',
    b"--b\r\n\r\n\r\n--b--",
)
MULTIPART = Target(
    "multipart", (multipart,), fuzz_multipart, _BODIES, (b"\r\n--b", b"--b--", b"\r\n\r\n", _HEAD, b"\r", b"\n", b"-", b'"', b"%0A", b";")
)
ENVELOPES = Target(
    "envelopes",
    (envelopes,),
    fuzz_envelopes,
    (envelopes.encode(b"{}") + envelopes.encode(b"{}", envelopes.END), envelopes.encode(b"x" * 300), b"\x00\x00\x00\x10\x01"),
    (b"\x00\x00\x00\x00", b"\x02\x00\x00\x00\x02{}", b"\x01", b"\xff\xff\xff\xff"),
)
