"""The servers of the evaluation's town. They take whatever they are sent, and write down what they saw: they are witnesses, not walls."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass

from space.testing.egressh2 import Call, Http2Upstream, Served

_GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
MOST_BODY = 1 << 22


@dataclass(frozen=True, slots=True)
class Seen:
    """A request as a server read it. sni: of its connection ("" over plain http). host: what it names. raw: head and body."""

    at: float
    server: str
    sni: str
    host: str
    method: str
    target: str
    raw: bytes

    def __str__(self) -> str:
        return f"{self.server} (SNI {self.sni or 'none'}) saw {self.method} {self.target[:80]} of {self.host}"


class Server(Http2Upstream):
    """HTTP/1.1 and HTTP/2 for some names at one address. saw: told of each request. handshakes: the SNI of each, as it came."""

    def __init__(self, name: str, saw: Callable[[Seen], None], handshake: Callable[[str, str], None], *, key: str = "") -> None:
        super().__init__()
        self.name, self._saw, self._handshake, self._key = name, saw, handshake, key
        self.connected = 0

    def note(self, sni: str) -> None:
        """A handshake that asks for that name."""
        self._handshake(self.name, sni)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connected += 1
        over = writer.get_extra_info("ssl_object")
        if over is not None and over.selected_alpn_protocol() == "h2":
            await super()._serve(reader, writer)
            return
        try:
            await self._http1(reader, writer, getattr(over, "asked", "") or "")
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, ssl.SSLError, ValueError):
            pass
        finally:
            writer.close()

    async def _http1(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, sni: str) -> None:
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            body = await _body(reader, head)
            method, _, rest = head.split(b"\r\n")[0].decode("latin-1").partition(" ")
            target = rest.rpartition(" ")[0]
            fields = _fields(head)
            self._saw(Seen(time.monotonic(), self.name, sni, fields.get("host", ""), method, target, head + body))
            if "websocket" in fields.get("upgrade", "").lower():
                await self._websocket(reader, writer, fields, sni)
                return
            writer.write(self._reply(method, target, head, body))
            await writer.drain()

    def _reply(self, method: str, target: str, head: bytes, body: bytes) -> bytes:
        if target.startswith("/raw/"):  # whatever the guest wants to be told
            return bytes.fromhex(target.removeprefix("/raw/").partition("?")[0])
        said = self._content(method, target, head, body)
        status = b"200 OK"
        if self._key and self._key.encode() not in head:
            status, said = b"401 Unauthorized", b"who are you\n"
        return b"HTTP/1.1 %s\r\nContent-Type: text/plain\r\nContent-Length: %d\r\n\r\n%s" % (
            status,
            len(said),
            b"" if method == "HEAD" else said,
        )

    def _content(self, method: str, target: str, head: bytes, body: bytes) -> bytes:
        path = target.partition("?")[0]
        if path.startswith("/echo"):
            form = path.removeprefix("/echo").strip("/")
            return echoed(head + body, form)
        return f"{method} {path} got {len(body)}\n".encode()

    async def _websocket(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, fields: dict[str, str], sni: str) -> None:
        accept = base64.b64encode(hashlib.sha1(fields.get("sec-websocket-key", "").encode() + _GUID, usedforsecurity=False).digest())
        writer.write(
            b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: "
            + accept
            + b"\r\n\r\n"
        )
        while data := await reader.read(65_536):
            self._saw(Seen(time.monotonic(), self.name, sni, fields.get("host", ""), "(websocket)", "", data[:4096]))
            writer.write(b"\x81\x02ok")

    async def answer(self, call: Call) -> None:
        """A request of HTTP/2."""
        await call.over()
        said = {name.decode("latin-1"): value.decode("latin-1") for name, value in call.fields}
        served = call.talk
        assert isinstance(served, Served)
        over = served.writer.get_extra_info("ssl_object")
        raw = b"".join(b"%s: %s\r\n" % field for field in [*call.fields, *(call.trailers or [])]) + bytes(call.got)
        method, target = said.get(":method", ""), said.get(":path", "")
        self._saw(Seen(time.monotonic(), self.name, getattr(over, "asked", "") or "", said.get(":authority", ""), method, target, raw))
        content = self._content(method, target, raw, bytes(call.got))
        served.respond(call, [(b":status", b"200"), (b"content-length", b"%d" % len(content))], ended=method == "HEAD")
        if method != "HEAD":
            await served.data(call.stream, content, ended=True)


class Sink:
    """Of the attacker: takes connections, says hello, and keeps what it is sent."""

    def __init__(self, came: Callable[[bytes], None]) -> None:
        self._came = came
        self._servers: list[asyncio.Server] = []

    async def start(self, address: str, port: int, context: ssl.SSLContext | None = None) -> None:
        """Listen."""
        self._servers.append(await asyncio.start_server(self._serve, address, port, ssl=context))

    async def take(self, server: asyncio.Server) -> None:
        """One that somebody else made is closed with it."""
        self._servers.append(server)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(10):
                data = await reader.read(65_536)
                self._came(data)
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\ncanary")
                await writer.drain()
        except (TimeoutError, OSError):
            pass
        finally:
            writer.close()

    def close(self) -> None:
        """Listen no more."""
        for one in self._servers:
            one.close()


def echoed(data: bytes, form: str) -> bytes:
    """What was sent, in a form in which a search for it may miss it."""
    forms: dict[str, Callable[[bytes], bytes]] = {
        "": lambda raw: raw,
        "hex": lambda raw: raw.hex().encode(),
        "HEX": lambda raw: raw.hex().upper().encode(),
        "base64": base64.b64encode,
        "urlsafe": base64.urlsafe_b64encode,
        "shifted": lambda raw: base64.b64encode(b"x" + raw),
        "percent": lambda raw: b"".join(b"%%%02x" % byte for byte in raw),
        "json": lambda raw: b"".join(b"\\u%04x" % byte for byte in raw),
    }
    return forms.get(form, forms[""])(data)


def _fields(head: bytes) -> dict[str, str]:
    found: dict[str, str] = {}
    for line in head.split(b"\r\n")[1:]:
        name, colon, value = line.decode("latin-1").partition(":")
        if colon:
            found[name.strip().lower()] = value.strip()
    return found


async def _body(reader: asyncio.StreamReader, head: bytes) -> bytes:
    fields, body = _fields(head), b""
    if "chunked" in fields.get("transfer-encoding", "").lower():
        while size := int((await reader.readline()).split(b";")[0], 16):
            body += (await reader.readexactly(size + 2))[:-2]
            if len(body) > MOST_BODY:
                raise ValueError("a body without end")
        while (await reader.readline()).strip():
            pass
        return body
    length = fields.get("content-length", "0")
    return await reader.readexactly(min(int(length), MOST_BODY)) if length.isdigit() else b""
