"""Heads and bodies with random changes, end to end: an upstream sees one host, one meaning, or nothing; and nothing stays open."""

from __future__ import annotations

import asyncio
import random
import re
from pathlib import Path

import pytest

from space.gateway.surroundings import Limits
from space.testing.egresslab import ALLOWED, Place, place, run

PIECES = [
    *(b"\r\n", b"\n", b"\r", b" ", b"\t", b":", b"\0", b"\r\n\r\n", b"0\r\n\r\n", b"\r\n "),
    *(b"//", b"/../", b"%2e", b"%2f", b"?", b"#", b"@", b",", b";"),
    *(b"Host: refused.example.com\r\n", b"Content-Length: 4\r\n", b"Content-Length: 0\r\n", b"Transfer-Encoding: chunked\r\n"),
    *(b"Transfer-Encoding: x\r\n", b"Connection: host\r\n", b"Connection: close\r\n"),
    *(b"Expect: 100-continue\r\n", b"Upgrade: websocket\r\n"),
    *(b"GET http://refused.example.com/ HTTP/1.1\r\n", b"GET /smuggled HTTP/1.1\r\nHost: refused.example.com\r\n\r\n"),
    *(b"HTTP/1.0", b"\xff", b"a" * 300),
]  # fmt: skip
# What a forwarded head looks like: nothing but this is ever written.
HEAD = re.compile(rb"[!-~]+ /[\x21-\x7e]* HTTP/1\.1\r\nhost: ([^\r\n]*)\r\n(?:[^\r\n:\s]+: [^\r\n]*\r\n)*\r\n\Z")


def bases(at: Place) -> list[bytes]:
    host = at.host(ALLOWED)
    return [
        b"GET /a/b?c=d HTTP/1.1\r\nHost: %s\r\nAccept: */*\r\n\r\n" % host,
        b"POST /x HTTP/1.1\r\nHost: %s\r\nContent-Length: 5\r\n\r\nhello" % host,
        b"POST /x HTTP/1.1\r\nHost: %s\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n" % host,
    ]


def mutated(chance: random.Random, data: bytes) -> bytes:
    for _ in range(chance.randint(1, 3)):
        at = chance.randrange(len(data))
        match chance.randrange(4):
            case 0:
                data = data[:at] + chance.choice(PIECES) + data[at:]
            case 1:
                data = data[:at] + data[at + chance.randint(1, 4) :] or b"x"
            case 2:
                data = data[:at] + bytes([chance.randrange(256)]) + data[at + 1 :]
            case _:
                lines = data.split(b"\r\n")
                chance.shuffle(lines)
                data = b"\r\n".join(lines)
    return data


@pytest.mark.parametrize("seed", range(4))
def test_changed_requests_have_one_meaning_or_none(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    heads: list[bytes] = []

    async def upstream(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            heads.append(head)
            if b"transfer-encoding: chunked\r\n" in head:
                while size := int(await reader.readline(), 16):
                    await reader.readexactly(size + 2)
                assert await reader.readline() == b"\r\n"
            elif found := re.search(rb"content-length: (\d+)\r\n", head):
                await reader.readexactly(int(found[1]))
            writer.write(b"HTTP/1.1 204 No Content\r\n\r\n")

    async def main() -> None:
        async with place(tmp_path, limits=Limits(sweep=0.02, head=0.3, idle=0.3, linger=0.1)) as at:
            at.rules({"host": ALLOWED, "scheme": "http"})
            await at.serve(ALLOWED, upstream, plain=True)
            for _ in range(10):
                sent = [mutated(chance, chance.choice(bases(at))) + bases(at)[0] * chance.randrange(2) for _ in range(20)]
                await asyncio.gather(*[at.exchange(ALLOWED, data, plain=True) for data in sent])
            await at.empty()
            assert len(heads) > 8
            assert {found[1] if (found := HEAD.match(head)) else head for head in heads} == {at.host(ALLOWED)}
            assert not [head for head in heads if b"smuggled" in head.split(b"\r\n")[0] and at.host(ALLOWED) not in head]
            assert "internal" not in {end.reason for end in at.ends()}
            assert {name for name, _ in at.lab.dialer.dialled} == {ALLOWED}

    run(main())
