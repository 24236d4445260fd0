"""Frames and heads of HTTP/2: one reading however they are cut; a head that passes holds nothing that another server reads otherwise."""

from __future__ import annotations

import random
from contextlib import suppress
from typing import Any

import hpack
from hyperframe.frame import ContinuationFrame, DataFrame, Frame, HeadersFrame, PingFrame, RstStreamFrame, SettingsFrame, WindowUpdateFrame
from tests.fuzz.engine.cuts import FLOW, Pieces, every_way
from tests.fuzz.engine.guided import Target

from space.core.policy import agreement
from space.core.wire import http1, http2, http2frames
from space.core.wire.http1 import BadHead
from space.core.wire.http2frames import BadFrames, FrameReader


def fuzz_http2(data: bytes) -> None:
    for preface in (True, False):
        found = every_way(_frames, data, preface)
        if isinstance(found, str):
            continue
        start = len(http2frames.PREFACE) if preface else 0
        joined = b"".join(frame.raw for frame in found)
        assert data[start : start + len(joined)] == joined
        for frame in found:
            assert len(frame.raw) - 9 == int.from_bytes(frame.raw[:3], "big") <= http2frames.MOST_FRAME
            assert 0 <= frame.stream < 1 << 31
        _heads(found)


def _frames(pieces: Pieces, preface: bool) -> Any:
    reader, found = FrameReader(preface=preface), list[http2frames.Frame]()
    for piece in pieces:
        try:
            found += reader.receive(piece)
        except BadFrames as error:
            return "refused" if error.code in range(14) else error
    return found


def _heads(frames: list[http2frames.Frame]) -> None:
    """Every head of the connection, as hpack unpacks it and ours judges it."""
    decoder, block = hpack.Decoder(max_header_list_size=65_536), b""
    for frame in frames:
        if frame.kind not in (http2frames.HEADERS, http2frames.CONTINUATION):
            continue
        payload = frame.payload
        if frame.kind == http2frames.HEADERS and frame.flags & 0x08:
            payload = payload[1 : len(payload) - payload[0]] if payload else b""
        if frame.kind == http2frames.HEADERS and frame.flags & 0x20:
            payload = payload[5:]
        block += payload
        if not frame.flags & http2frames.END_HEADERS:
            continue
        try:
            fields = [(bytes(name), bytes(value)) for name, value in decoder.decode(block, raw=True)]
        except hpack.HPACKError:
            return
        block = b""
        _judged(fields)


def _judged(fields: list[tuple[bytes, bytes]]) -> None:
    try:
        head = http2.request_head(fields)
    except BadHead:
        pass
    else:
        assert head.path.startswith(b"/")
        assert not any(byte <= 0x20 or byte == 0x7F for byte in head.path)
        assert not any(name in http1.HOP_BY_HOP - {b"te", b"trailer"} or name.startswith(b":") for name, _ in head.fields)
        assert not any(byte in b"\r\n\0" for name, value in head.fields for byte in name + value)
        if agreement.of_authority(FLOW, head.authority) is None:
            assert head.authority.split(b":")[0].rstrip(b".").lower() == FLOW.name.encode()
    with suppress(BadHead):
        status, _, _ = http2.response_head(fields)
        assert status != 101
    with suppress(BadHead):
        http2.check_trailers(fields, 400)
        assert not any(name.startswith(b":") or name in (b"host", b"content-length") for name, _ in fields)


def _block(*fields: tuple[str, str]) -> bytes:
    return hpack.Encoder().encode(fields)


_REQUEST = ((":method", "GET"), (":scheme", "https"), (":authority", "a.example.com"), (":path", "/a?b=c"))
_FIELDS = (
    (":method", "CONNECT"),
    (":scheme", "http"),
    (":authority", "u@b.example.com"),
    (":path", "a b"),
    (":path", "*"),
    ("host", "b.example.com"),
    ("connection", "x"),
    ("transfer-encoding", "chunked"),
    ("te", "trailers"),
    ("te", "gzip"),
    ("content-length", "5"),
    ("content-length", "5,5"),
    ("Upper", "x"),
    ("x", " y"),
    ("x", "a\r\nb: c"),
    (":status", "200"),
    (":status", "101"),
    ("cookie", "a"),
    ("grpc-status", "0"),
)


def _made(frame: Frame, flags: tuple[str, ...] = ()) -> bytes:
    for flag in flags:
        frame.flags.add(flag)
    return frame.serialize()


def make_http2(chance: random.Random) -> bytes:
    """Frames with right lengths and heads that hpack made."""
    out = [_made(SettingsFrame(0))]
    for _ in range(chance.randint(1, 5)):
        stream = chance.choice((1, 3, 5, 0, 2))
        fields = [field for field in (*_REQUEST, *chance.sample(_FIELDS, chance.randrange(4))) if chance.random() < 0.9]
        if chance.random() < 0.2:
            chance.shuffle(fields)
        block = _block(*fields)
        cut = chance.randrange(len(block) + 1)
        head = HeadersFrame(stream or 1, block[:cut])
        made = _made(head) + _made(ContinuationFrame(stream or 1, block[cut:]), ("END_HEADERS",))
        other = chance.choice(
            (
                _made(DataFrame(stream or 1, chance.randbytes(chance.randrange(50)))),
                _made(PingFrame(0, bytes(8))),
                _made(RstStreamFrame(stream or 1)),
                _made(WindowUpdateFrame(stream, window_increment=1 + chance.randrange(1000))),
                _made(SettingsFrame(0), ("ACK",)),
                b"",
            )
        )
        out += [made if chance.random() < 0.7 else _made(HeadersFrame(stream or 1, block), ("END_HEADERS", "END_STREAM")), other]
    return (http2frames.PREFACE if chance.random() < 0.8 else b"") + b"".join(out)


_HTTP2 = tuple(make_http2(random.Random(seed)) for seed in range(8))
_HTTP2_WORDS = (
    http2frames.PREFACE,
    b"\0\0\0\4\0\0\0\0\0",
    b"\0\0\0\4\1\0\0\0\0",
    b"\0\0\x08\6\0\0\0\0\0",
    b"\0\0\4\3\0\0\0\0\1\0\0\0\x08",
    b"\0\0\0\x09\4\0\0\0\1",
    b"\0\0\0\1\4\0\0\0\1",
    _block(*_REQUEST),
    b"\x82\x84\x87",
    b"\x40\x04host\x0db.example.com",
    b"\x3f\xe1\x1f",
    b"\x20",
)

TARGET = Target("http2", (http2frames, http2, agreement), fuzz_http2, _HTTP2, _HTTP2_WORDS, make_http2)
