"""The tripwire and the chunks of signed bodies: what they say does not depend on how bytes are cut, nothing of a secret passes whole."""

from __future__ import annotations

import base64

from tests.fuzz.engine.guided import Target

from space.core.credentials import sigv4, tripwire
from space.core.credentials.tripwire import Tripwire, needles

_SECRET = b"sk_live_0Pn2DMIKRiIjIpZLtxvLqw9"
_ESCAPED = b"".join(b"%%%02x" % one for one in _SECRET)
_NEEDLES = needles(_SECRET)
_SIGNED = sigv4.Signed(b"/", (), b"0" * 64, b"k" * 32, "20260101T000000Z", "20260101/eu-test-1/s3/aws4_request")


def fuzz_tripwire(data: bytes) -> None:
    whole = Tripwire(_NEEDLES).receive(data, ended=True)
    assert len(whole) == len(data)
    for echo in (_SECRET, _SECRET.hex().encode(), _SECRET.hex().upper().encode(), base64.b64encode(_SECRET)[:41]):
        assert echo not in whole
    for step in (1, 7, 64):
        wire = Tripwire(_NEEDLES)
        out = b""
        for at in range(0, len(data), step):
            out += wire.receive(data[at : at + step])
            assert wire.held < _NEEDLES.longest
        assert out + wire.end() == whole


def fuzz_chunks(data: bytes) -> None:
    whole = _resigned(data, len(data) or 1)
    for step in (1, 13):
        again = _resigned(data, step)
        assert (again is None) == (whole is None)
        assert again is None or again == whole
    if whole is not None:
        assert len(whole) <= len(data)


def _resigned(data: bytes, step: int) -> bytes | None:
    chunks, out = sigv4.Chunks(_SIGNED, most=4096), b""
    try:
        for at in range(0, len(data), step):
            out += chunks.receive(data[at : at + step])
    except sigv4.Unsignable:
        return None
    assert chunks.held < 4096 + 256
    return out


def _echo(text: bytes) -> bytes:
    return b'{"a": "' + text + b'"}'


TRIPWIRE = Target(
    "tripwire",
    (tripwire,),
    fuzz_tripwire,
    tuple(_echo(one) for one in (_SECRET, base64.b64encode(b"u:" + _SECRET), _SECRET.hex().encode(), _ESCAPED)),
    (_SECRET, _SECRET[:9], _SECRET[9:], _SECRET.hex().encode()[:20], b"%73%6b", b"\\u0073"),
)
CHUNKS = Target(
    "sigv4chunks",
    (sigv4,),
    fuzz_chunks,
    (b"5;chunk-signature=" + b"0" * 64 + b"\r\nhello\r\n0;chunk-signature=" + b"0" * 64 + b"\r\n\r\n",),
)
