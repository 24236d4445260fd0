"""HTTP/1.1 as far as the interpreter's server needs it: requests with bodies in, documents and streams of pieces out."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

MOST_HEAD = 64 << 10
MOST_BODY = 32 << 20


class Refused(Exception):
    """A request that is answered with a status and a sentence."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


@dataclass(frozen=True, slots=True)
class Request:
    """One request. headers: by lower-case name."""

    method: str
    path: str
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""

    @property
    def keeps(self) -> bool:
        """Whether another request may follow on this connection."""
        return self.headers.get("connection", "").lower() != "close"

    def document(self) -> dict[str, Any]:
        """The JSON object that it holds; Refused when it is none."""
        try:
            found = json.loads(self.body or b"{}")
        except (ValueError, RecursionError) as error:
            raise Refused(400, f"the body is no JSON: {str(error)[:200]}") from None
        if not isinstance(found, dict):
            raise Refused(400, "the body is no JSON object")
        return found


def parse_head(head: bytes) -> Request:
    """Request line and headers; Refused when they are none. A header that decides where a body ends may be there once."""
    lines = head.decode("latin-1").split("\r\n")
    words = lines[0].split(" ")
    if len(words) != 3 or not words[0].isalpha() or not words[1].startswith("/") or words[2] not in ("HTTP/1.1", "HTTP/1.0"):
        raise Refused(400, "this is no request of HTTP/1.1")
    headers: dict[str, str] = {"connection": "close"} if words[2] == "HTTP/1.0" else {}
    seen: set[str] = set()
    for line in lines[1:]:
        name, colon, value = line.partition(":")
        name = name.lower()
        if not colon or not name or name != name.strip() or (name in seen and name in ("content-length", "transfer-encoding")):
            raise Refused(400, f"not a header: {line[:80]!r}")
        seen.add(name)
        headers[name] = value.strip()
    if "content-length" in headers and "transfer-encoding" in headers:
        raise Refused(400, "both content-length and transfer-encoding")
    return Request(words[0].upper(), words[1].partition("?")[0], headers)


class Connection:
    """One client: its requests one after the other, and word of when it has gone."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._ahead = b""
        self._watch: asyncio.Task[bytes] | None = None

    async def request(self) -> Request | None:
        """The next one; None when there is no other. Refused when it is none, or larger than is taken."""
        head = await self._until(b"\r\n\r\n", MOST_HEAD)
        if head is None:
            return None
        request = parse_head(head)
        if request.headers.get("expect", "").lower() == "100-continue":
            self._writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        return Request(request.method, request.path, request.headers, await self._body(request.headers))

    async def _body(self, headers: Mapping[str, str]) -> bytes:
        coding = headers.get("transfer-encoding")
        if coding is None:
            length = headers.get("content-length", "0")
            if not (length.isascii() and length.isdigit()):
                raise Refused(400, f"content-length is {length[:40]!r}")
            if int(length) > MOST_BODY:
                raise Refused(413, f"the body has {length[:40]} bytes, and at most {MOST_BODY} are taken")
            return await self._exactly(int(length))
        if coding.lower() != "chunked":
            raise Refused(501, f"transfer-encoding {coding[:40]!r} is not known")
        body = bytearray()
        while True:
            line = await self._until(b"\r\n", 1024) or b""
            try:
                size = int(line.partition(b";")[0], 16)
            except ValueError:
                raise Refused(400, "a chunk has no size") from None
            if size < 0 or len(body) + size > MOST_BODY:
                raise Refused(413, f"the body has more than {MOST_BODY} bytes")
            if size == 0:
                while await self._until(b"\r\n", MOST_HEAD):
                    pass
                return bytes(body)
            body += await self._exactly(size)
            if await self._exactly(2) != b"\r\n":
                raise Refused(400, "a chunk is not as long as it says")

    async def _until(self, mark: bytes, most: int) -> bytes | None:
        """What comes before the mark; None when the client says nothing more."""
        while mark not in self._ahead:
            if len(self._ahead) > most:
                raise Refused(431, f"the head has more than {most} bytes")
            data = await self._more()
            if not data:
                return None
            self._ahead += data
        found, _, self._ahead = self._ahead.partition(mark)
        if len(found) > most:
            raise Refused(431, f"the head has more than {most} bytes")
        return found

    async def _exactly(self, length: int) -> bytes:
        pieces, missing = [self._ahead[:length]], length - len(self._ahead)
        self._ahead = self._ahead[length:]
        while missing > 0:
            if not (data := await self._more()):
                raise ConnectionResetError("the client left within a body")
            pieces.append(data[:missing])
            self._ahead = data[missing:]
            missing -= len(data)
        return b"".join(pieces)

    async def _more(self) -> bytes:
        if self._watch is not None:
            watch, self._watch = self._watch, None
            return await watch
        return await self._reader.read(65536)

    def gone(self) -> asyncio.Task[bytes]:
        """Done when the client has left (it holds b"") or says something before it was answered (which is then the next request)."""
        if self._watch is None:
            self._watch = asyncio.create_task(self._reader.read(65536))
        return self._watch

    async def answer(self, status: int, body: bytes, kind: str = "text/plain; charset=utf-8", *, keeps: bool = True) -> None:
        """A whole answer."""
        self._head(status, kind, f"Content-Length: {len(body)}", keeps=keeps)
        self._writer.write(body)
        await self._writer.drain()

    def begin(self, kind: str, *, keeps: bool) -> None:
        """The head of an answer whose pieces follow."""
        self._head(200, kind, "Transfer-Encoding: chunked", keeps=keeps)

    async def piece(self, data: bytes) -> None:
        """A piece; waits while the client takes nothing."""
        self._writer.write(b"%x\r\n%b\r\n" % (len(data), data))
        await self._writer.drain()

    async def end(self) -> None:
        """No piece follows."""
        self._writer.write(b"0\r\n\r\n")
        await self._writer.drain()

    def _head(self, status: int, kind: str, length: str, *, keeps: bool) -> None:
        lines = [f"HTTP/1.1 {status} {HTTPStatus(status).phrase}", f"Content-Type: {kind}", length]
        lines += [] if keeps else ["Connection: close"]
        self._writer.write(("\r\n".join(lines) + "\r\n\r\n").encode("latin-1"))

    async def aclose(self) -> None:
        """Close it."""
        if self._watch is not None:
            self._watch.cancel()
        self._writer.close()
