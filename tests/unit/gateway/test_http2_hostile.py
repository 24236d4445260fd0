"""Frames that nobody means well with: floods and bombs end the connection, and an upstream sees nothing that was not judged."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable
from pathlib import Path

import pytest
from hpack import Encoder

from space.core.wire.http2frames import PREFACE
from space.gateway.records import Repeated
from space.gateway.surroundings import Limits
from space.testing.egressh2 import Call, Served, guest, serve_h2
from space.testing.egresslab import ALLOWED, REFUSED, Place, place, run

Plain = tuple[asyncio.StreamReader, asyncio.StreamWriter]
CALM = b"\x0b"


def frame(kind: int, flags: int = 0, stream: int = 0, payload: bytes = b"") -> bytes:
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


SETTINGS = frame(4)


def head(at: Place, stream: int, path: bytes = b"/", *, flags: int = 5, extra: list[tuple[bytes, bytes]] | None = None) -> bytes:
    """A request without a dynamic table."""
    fields = [(b":method", b"GET"), (b":scheme", b"https"), (b":authority", at.host(ALLOWED)), (b":path", path), *(extra or [])]
    encoder = Encoder()
    encoder.header_table_size = 0
    return frame(1, flags, stream, encoder.encode(fields))


async def opened(at: Place) -> Plain:
    """A connection on which the preface has been said."""
    context = at.lab.client_context()
    context.set_alpn_protocols(["h2"])
    reader, writer = await at.tls(ALLOWED, context=context)
    writer.write(PREFACE + SETTINGS)
    return reader, writer


async def said(plain: Plain, data: bytes) -> bytes:
    """All that is answered to bytes, until the gateway closes."""
    reader, writer = plain
    writer.write(data)
    try:
        return await asyncio.wait_for(reader.read(-1), 15)
    except ConnectionError:
        return b""
    finally:
        writer.close()


def goaway(data: bytes) -> int | None:
    """The code of the last GOAWAY among frames."""
    code = None
    while len(data) >= 9:
        size = int.from_bytes(data[:3], "big")
        if data[3] == 7:
            code = int.from_bytes(data[13:17], "big")
        data = data[9 + size :]
    return code


async def reason(at: Place) -> str:
    """Of the one connection that has ended: written, or counted where its streams were many denials already."""

    def found() -> list[str]:
        counted = [record.reason for record in at.lab.records if isinstance(record, Repeated) and record.of == "connection"]
        return [end.reason for end in at.ends()] + counted

    await at.until(found)
    return found()[0]


FLOODS: dict[str, Callable[[Place], bytes]] = {
    "rapid reset": lambda at: b"".join(head(at, n) + frame(3, 0, n, b"\0\0\0\x08") for n in range(1, 401, 2)),
    "pings": lambda _: frame(6, 0, 0, bytes(8)) * 100,
    "settings": lambda _: SETTINGS * 50,
    "empty data": lambda at: head(at, 1, flags=4) + frame(0, 0, 1) * 400,
    "padding": lambda at: head(at, 1, flags=4) + frame(0, 8, 1, b"\xff" + bytes(256)) * 400,
    "priorities": lambda _: frame(2, 0, 3, bytes(5)) * 1000,
    "unknown frames": lambda _: frame(99, 0, 0, b"x") * 1000,
    "windows": lambda _: frame(8, 0, 0, b"\0\0\0\1") * 9000,
    "streams that are malformed": lambda at: b"".join(head(at, n, extra=[(b"connection", b"x")]) for n in range(1, 201, 2)),
    "empty continuations": lambda at: head(at, 1, flags=1) + frame(9, 0, 1) * 100,
    "a head without end": lambda at: head(at, 1, flags=1) + frame(9, 0, 1, b"\x10\x01a\x7f\x80\x7e" + bytes(16_000)) * 8,
    "resets of a stream that is over": lambda at: head(at, 1) + frame(3, 0, 1, b"\0\0\0\x08") * 9000,
    "data on a stream that is over": lambda at: head(at, 1, flags=4) + frame(3, 0, 1, b"\0\0\0\x08") + frame(0, 0, 1, b"x") * 9000,
}  # fmt: skip


@pytest.mark.parametrize("flood", FLOODS.values(), ids=FLOODS.keys())
def test_a_flood_ends_the_connection_and_is_recorded(tmp_path: Path, flood: Callable[[Place], bytes]) -> None:
    async def main() -> None:
        async with place(tmp_path) as at:
            upstream = await serve_h2(at)
            assert goaway(await said(await opened(at), flood(at))) == CALM[0]
            await at.empty()
            assert await reason(at) in ("http2_flood", "http2_flood_head")
            assert len(upstream.calls) <= 110
            client = await guest(at)
            assert (await client.get("/still")).status == 200
            await client.close()
            await at.empty()

    run(main())


def test_a_bomb_of_compressed_fields_is_not_unpacked(tmp_path: Path) -> None:
    async def main() -> None:
        async with place(tmp_path) as at:
            upstream = await serve_h2(at)
            value = b"\x7f" + b"\x81\x1e" + b"x" * 4000  # one entry of the table, then references of a byte each
            bomb = b"\x40\x01a" + value + b"\xbe" * 10_000
            assert goaway(await said(await opened(at), frame(1, 5, 1, bomb))) == CALM[0]
            await at.empty()
            assert at.ends()[-1].reason == "http2_flood_head"
            assert upstream.calls == []

    run(main())


BROKEN: dict[str, Callable[[Place], bytes]] = {
    "a frame that is too long": lambda _: frame(0, 0, 1, bytes(16_385)),
    "data on no stream": lambda _: frame(0, 0, 0, b"x"),
    "data on a stream that was never begun": lambda _: frame(0, 0, 5, b"x"),
    "a head on no stream": lambda at: head(at, 0),
    "a head on an even stream": lambda at: head(at, 2),
    "an older stream": lambda at: head(at, 5) + head(at, 3),
    "a push": lambda at: head(at, 1) + frame(5, 4, 1, b"\0\0\0\2\x82"),
    "a continuation of nothing": lambda _: frame(9, 4, 1, b"x"),
    "another stream in the middle of a head": lambda at: head(at, 1, flags=1) + head(at, 3),
    "a priority in the middle of a head": lambda at: head(at, 1, flags=1) + frame(2, 0, 1, bytes(5)),
    "a window that overflows": lambda _: frame(8, 0, 0, b"\x7f\xff\xff\xff"),
    "a window of nothing": lambda _: frame(8, 0, 0, bytes(4)),
    "a window that is exceeded": lambda at: head(at, 1, flags=4) + frame(0, 0, 1, bytes(16_384)) * 20,
    "a frame size that is not allowed": lambda _: frame(4, 0, 0, b"\0\5\0\0\0\1"),
    "a short ping": lambda _: frame(6, 0, 0, b"x"),
    "a short reset": lambda at: head(at, 1) + frame(3, 0, 1, b"x"),
    "more padding than there is": lambda at: head(at, 1, flags=4) + frame(0, 8, 1, b"\xffx"),
    "compression that is none": lambda _: frame(1, 5, 1, b"\xff\xff\xff\xff\xff\xff\xff\xff"),
    "more streams than were offered": lambda at: b"".join(head(at, n, flags=4) for n in range(1, 240, 2)),
    "a table larger than was offered": lambda at: frame(1, 5, 1, b"\x3f\xe1\xff\x03" + head(at, 1)[9:]),
}


@pytest.mark.parametrize("broken", BROKEN.values(), ids=BROKEN.keys())
def test_frames_that_cannot_follow_one_another_end_the_connection(tmp_path: Path, broken: Callable[[Place], bytes]) -> None:
    async def main() -> None:
        async with place(tmp_path) as at:
            upstream = await serve_h2(at)
            plain = await opened(at)
            assert goaway(await said(plain, broken(at))) not in (None, 0)
            await at.empty()
            assert (await reason(at)).startswith("http2_")
            assert upstream.open == 0

    run(main())


def test_half_a_preface_half_a_head_and_silence_end(tmp_path: Path) -> None:
    limits = Limits(sweep=0.05, head=0.3, idle=0.8, linger=0.2)

    async def main() -> None:
        async with place(tmp_path, limits=limits) as at:
            await serve_h2(at)
            context = at.lab.client_context()
            context.set_alpn_protocols(["h2"])
            plain = await at.tls(ALLOWED, context=context)
            await said(plain, PREFACE[:10])
            await said(await opened(at), head(at, 1, flags=1))
            await said(await opened(at), head(at, 1)[:-3])
            await said(await opened(at), b"")
            await at.empty()
            assert [end.reason for end in at.ends()] == ["head_slow"] * 3 + ["idle"]

    run(main())


def test_a_table_that_a_guest_offers_costs_us_nothing(tmp_path: Path) -> None:
    async def answer(call: Call) -> None:
        served = call.talk
        assert isinstance(served, Served)
        served.respond(call, [(b":status", b"200"), (b"x-big", b"%d" % len(served.calls) + b"y" * 3000)], ended=True)

    async def main() -> None:
        async with place(tmp_path) as at:
            await serve_h2(at, answer=answer)
            client = await guest(at)
            client.h2.update_settings({1: 2**30})
            for _ in range(100):
                assert (await client.get("/")).status == 200
            (connection,) = at.lab.worker._connections
            encoder = connection._stage._near._h2.encoder  # type: ignore[union-attr]
            assert encoder.header_table_size == 4096
            await client.close()
            await at.empty()

    run(main())


@pytest.mark.parametrize("kind", ["push", "flood", "garbage", "connection field", "status", "interims", "overlong", "two heads"])
def test_an_upstream_that_breaks_the_rules_is_no_harm(tmp_path: Path, kind: str) -> None:
    async def answer(call: Call) -> None:
        served = call.talk
        assert isinstance(served, Served)
        encoder = Encoder()
        encoder.header_table_size = 0
        match kind:
            case "push":
                out = frame(5, 4, call.stream, b"\0\0\0\2\x82")
            case "flood":
                out = frame(6, 0, 0, bytes(8)) * 200
            case "garbage":
                out = b"HTTP/1.1 200 OK\r\n\r\n" * 5
            case "connection field":
                out = frame(1, 5, call.stream, encoder.encode([(b":status", b"200"), (b"connection", b"x")]))
            case "status":
                out = frame(1, 5, call.stream, encoder.encode([(b":status", b"2oo")]))
            case "interims":
                out = frame(1, 4, call.stream, encoder.encode([(b":status", b"103")])) * 20
            case "overlong":
                out = frame(0, 0, call.stream, bytes(20_000))
            case _:
                out = frame(1, 4, call.stream, encoder.encode([(b":status", b"200")])) * 2
        served.writer.write(out)

    async def main() -> None:
        async with place(tmp_path) as at:
            await serve_h2(at, answer=answer)
            client = await guest(at)
            call = await client.get("/")
            assert call.error is not None or call.status == 502
            await client.close()
            await at.empty()
            (record,) = at.requests()
            assert record.reason.startswith("upstream_")

    run(main())


def test_interim_replies_are_dropped_and_the_last_one_arrives(tmp_path: Path) -> None:
    async def answer(call: Call) -> None:
        served = call.talk
        assert isinstance(served, Served)
        for status in (b"100", b"103"):
            served.h2.send_headers(call.stream, [(b":status", status), (b"link", b"x")])
        served.respond(call, [(b":status", b"304"), (b"content-length", b"10")], ended=True)

    async def main() -> None:
        async with place(tmp_path) as at:
            await serve_h2(at, answer=answer)
            client = await guest(at)
            call = await client.get("/")
            assert call.status == 304
            await client.close()
            await at.empty()

    run(main())


PIECES = [
    *(frame(4), frame(4, 1), frame(6, 0, 0, bytes(8)), frame(8, 0, 0, b"\0\0\1\0"), frame(8, 0, 1, b"\0\0\1\0"), frame(3, 0, 1, bytes(4))),
    *(frame(0, 0, 1, b"x"), frame(0, 1, 3, b"x"), frame(2, 0, 1, bytes(5)), frame(9, 4, 1, b"\x82"), frame(7, 0, 0, bytes(8))),
    *(frame(5, 4, 1, b"\0\0\0\2\x82"), frame(200, 0, 0, b"x"), PREFACE, b"\0", b"\xff" * 9),
]  # fmt: skip


def mutated(chance: random.Random, frames: list[bytes]) -> bytes:
    frames = list(frames)
    for _ in range(chance.randint(1, 4)):
        at = chance.randrange(len(frames))
        match chance.randrange(6):
            case 0:
                frames.insert(at, chance.choice(PIECES))
            case 1:
                chance.shuffle(frames)
            case 2:
                byte = chance.randrange(len(frames[at]))
                frames[at] = frames[at][:byte] + bytes([chance.randrange(256)]) + frames[at][byte + 1 :]
            case 3:
                byte = chance.randrange(len(frames[at]))
                frames[at] = frames[at][:byte] + frames[at][byte + chance.randint(1, 4) :] or b"x"
            case 4:
                frames[at] *= chance.randint(2, 4)
            case _:
                flags = chance.randrange(5)
                frames[at] = frames[at][:4] + bytes([frames[at][4] ^ (1 << flags)]) + frames[at][5:] if len(frames[at]) > 5 else b""
                frames[at] = frames[at] or b"x"
    return b"".join(frames)


@pytest.mark.parametrize("seed", range(6))
def test_changed_frames_reach_an_upstream_judged_or_not_at_all(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)

    async def main() -> None:
        async with place(tmp_path, limits=Limits(sweep=0.02, head=0.3, idle=0.3, linger=0.1)) as at:
            at.rules({"host": ALLOWED, "methods": ["GET", "POST"], "paths": ["/ok/**"]})
            upstream = await serve_h2(at)
            await serve_h2(at, REFUSED)

            async def one() -> None:
                frames = [
                    head(at, 1, b"/ok/1"),
                    head(at, 3, b"/no/%2e%2e/ok"),
                    head(at, 5, b"/ok/5", flags=4, extra=[(b"x-a", b"b")]),
                    frame(0, 0, 5, b"hello"),
                    frame(0, 1, 5, b"rest"),
                    head(at, 7, b"/ok/7", extra=[(b"host", REFUSED.encode())]),
                    head(at, 9, b"/ok/9"),
                ]
                with contextlib.suppress(ConnectionResetError):  # a machine with more to do may not shake hands within these limits
                    await said(await opened(at), mutated(chance, frames))

            for _ in range(12):
                await asyncio.gather(*[one() for _ in range(10)])
            await at.empty()
            assert len(upstream.calls) > 20
            for call in upstream.calls:
                assert [name for name, _ in call.fields[:4]] == [b":method", b":scheme", b":authority", b":path"]
                assert call[b":authority"] == at.host(ALLOWED)
                assert call[b":method"] in (b"GET", b"POST")
                assert call[b":path"].startswith(b"/ok/")
                assert b"host" not in dict(call.fields)
            assert "internal" not in {end.reason for end in at.ends()}
            assert {name for name, _ in at.lab.dialer.dialled} == {ALLOWED}

    run(main())
