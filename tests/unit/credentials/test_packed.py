"""What is packed is searched before it goes on, however it is cut; what cannot be searched goes nowhere."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from space.core.credentials.packed import Packed, Unsearchable, searching
from space.core.credentials.tripwire import Tripwire, needles

SECRET = b"sk_live_0Pn2DMIKRiIjIpZLtxvLqw9"
SOUGHT = needles(SECRET)


def raw(data: bytes, level: int = 6) -> bytes:
    packer = zlib.compressobj(level, wbits=-zlib.MAX_WBITS)
    return packer.compress(data) + packer.flush()


PACKERS: dict[str, tuple[bytes, Callable[[bytes], bytes]]] = {
    "gzip": (b"gzip", gzip.compress),
    "stored": (b"x-gzip", lambda data: gzip.compress(data, 0, mtime=0)),
    "members": (b"gzip", lambda data: b"".join(gzip.compress(data[at : at + 5], mtime=0) for at in range(0, len(data), 5))),
    "deflate": (b"Deflate", zlib.compress),
    "raw": (b"deflate", raw),
    "raw stored": (b"deflate", lambda data: raw(data, 0)),
}


def through(wire: Tripwire, data: bytes, step: int) -> bytes:
    out = b""
    for at in range(0, len(data), step):
        out += wire.receive(data[at : at + step], ended=at + step >= len(data))
    return out + wire.end()


@pytest.mark.parametrize("packer", PACKERS)
@pytest.mark.parametrize("step", [1, 7, 100_000])
def test_what_holds_no_echo_passes_as_it_came(packer: str, step: int) -> None:
    coding, pack = PACKERS[packer]
    data = pack(b"nothing of sk_live_ it " * 60)
    wire = searching(SOUGHT, [(b"content-encoding", coding)])
    assert through(wire, data, step) == data
    assert (wire.echoes, wire.held) == (0, 0)


@given(st.sampled_from(sorted(PACKERS)), st.binary(max_size=300), st.binary(max_size=300), st.integers(1, 400))
def test_no_cut_lets_the_end_of_an_echo_pass(packer: str, before: bytes, after: bytes, step: int) -> None:
    coding, pack = PACKERS[packer]
    data = pack(before + SECRET + after)
    wire = searching(SOUGHT, [(b"content-encoding", coding)])
    out, refused = b"", False
    for at in range(0, len(data), step):
        try:
            out += wire.receive(data[at : at + step])
        except Unsearchable:
            refused = True
            break
    assert refused
    assert wire.echoes == 1
    unpacker = zlib.decompressobj(-zlib.MAX_WBITS if packer.startswith("raw") else 32 + zlib.MAX_WBITS)
    seen = unpacker.decompress(out)
    while unpacker.unused_data:
        rest, unpacker = unpacker.unused_data, zlib.decompressobj(16 + zlib.MAX_WBITS)
        seen += unpacker.decompress(rest)
    assert (before + SECRET).startswith(seen), "only what came before the echo was whole"
    assert len(seen) < len(before) + len(SECRET)
    assert len(seen) <= len(before) or not SECRET.startswith(seen[len(before) :]), "nor a part of it"


@pytest.mark.parametrize(
    "fields",
    [
        [(b"content-encoding", b"br")],
        [(b"content-encoding", b"zstd")],
        [(b"content-encoding", b"gzip, gzip")],
        [(b"content-encoding", b"gzip"), (b"content-encoding", b"deflate")],
        [(b"content-encoding", b"aes128gcm")],
    ],
)
def test_what_cannot_be_unpacked_here_is_refused(fields: list[tuple[bytes, bytes]]) -> None:
    with pytest.raises(Unsearchable, match="packed"):
        searching(SOUGHT, fields)


def test_what_says_identity_or_nothing_is_searched_as_it_is() -> None:
    for fields in ([], [(b"content-encoding", b"identity")], [(b"content-encoding", b"")], [(b"content-type", b"gzip")]):
        wire = searching(SOUGHT, fields)
        assert not isinstance(wire, Packed)
        assert wire.receive(SECRET, ended=True) == b"*" * len(SECRET)


@pytest.mark.parametrize(
    "data", [SECRET, b"\x1f\x8b" + SECRET * 3, gzip.compress(b"a", mtime=0) + SECRET, gzip.compress(b"a", mtime=0) + bytes(20)]
)
def test_what_is_not_packed_as_it_says_goes_nowhere(data: bytes) -> None:
    with pytest.raises(Unsearchable):
        searching(SOUGHT, [(b"content-encoding", b"gzip")]).receive(data)
    with pytest.raises(Unsearchable):
        searching(SOUGHT, [(b"content-encoding", b"deflate")]).receive(zlib.compress(b"a") + SECRET)


def test_what_unpacks_to_far_more_than_it_is_is_cut_early() -> None:
    bomb = gzip.compress(bytes(1 << 28), 9, mtime=0)
    wire = searching(SOUGHT, [(b"content-encoding", b"gzip")])
    with pytest.raises(Unsearchable, match="200 times"):
        wire.receive(bomb[:65_536])
    text = gzip.compress(b"{'id': 1, 'name': 'somebody'}, " * 200_000, 9, mtime=0)
    assert through(searching(SOUGHT, [(b"content-encoding", b"gzip")]), text, 16_384) == text


def test_what_may_always_go_on_as_an_echo_is_not_held_without_end() -> None:
    packer = zlib.compressobj(0, wbits=16 + zlib.MAX_WBITS)
    wire = searching(SOUGHT, [(b"content-encoding", b"gzip")])
    most = 0
    for _ in range(100):
        try:
            wire.receive(packer.compress(b"x" * 4_000 + SECRET[:9]) + packer.flush(zlib.Z_SYNC_FLUSH))
        except Unsearchable:
            break
        most = max(most, wire.held)
    assert 60_000 < most <= 65_536
