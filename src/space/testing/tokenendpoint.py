"""A token endpoint (RFC 6749) over real TLS: it checks client and grant, turns refresh tokens, and says what it was asked.

async with token_endpoint(place, "auth.example.com", "127.9.0.2") as endpoint:
    endpoint.refresh_tokens.add("r1") ... endpoint.granted, endpoint.asked
"""

from __future__ import annotations

import asyncio
import base64
import json
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import parse_qsl, unquote

from space.testing.certificates import certificate


@dataclass
class TokenEndpoint:
    """client: who may ask, with its secret. refresh_tokens: that are good; one that is used is not any more, where `turns`.

    asked: forms as they came, with `authorization` beside them. granted: access tokens that were given out. raw: sent instead of an
    answer.
    """

    port: int = 0
    authority: Path = Path()
    client: tuple[str, str] = ("agent", "s3cret")
    turns: bool = True
    expires_in: int = 3600
    delay: float = 0.0
    raw: bytes | None = None
    refresh_tokens: set[str] = field(default_factory=set)
    asked: list[dict[str, str]] = field(default_factory=list)
    granted: list[str] = field(default_factory=list)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, asyncio.IncompleteReadError):
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            line, *rest = head.split("\r\n")
            fields = {name.lower(): value.strip() for name, _, value in (one.partition(":") for one in rest if one)}
            form = (await reader.readexactly(int(fields.get("content-length", "0")))).decode()
            await asyncio.sleep(self.delay)
            if self.raw is not None:
                writer.write(self.raw)
            else:
                status, answer = self._answer(line, fields, dict(parse_qsl(form, keep_blank_values=True)))
                body = json.dumps(answer).encode()
                words = b"HTTP/1.1 %d Said\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % (status, len(body))
                writer.write(words + body)
            await writer.drain()
        writer.close()

    def _answer(self, line: str, fields: dict[str, str], form: dict[str, str]) -> tuple[int, dict[str, object]]:
        self.asked.append({**form, **({"authorization": fields["authorization"]} if "authorization" in fields else {})})
        if line.split(" ")[:2] != ["POST", "/token"] or fields.get("content-type") != "application/x-www-form-urlencoded":
            return 404, {"error": "invalid_request"}
        if self._client(fields, form) != self.client:
            return 401, {"error": "invalid_client"}
        answer: dict[str, object] = {"token_type": "Bearer", "expires_in": self.expires_in}
        if form.get("grant_type") == "refresh_token":
            if form.get("refresh_token") not in self.refresh_tokens:
                return 400, {"error": "invalid_grant"}
            if self.turns:
                self.refresh_tokens.discard(form["refresh_token"])
                answer["refresh_token"] = f"refresh-{len(self.asked)}"
                self.refresh_tokens.add(str(answer["refresh_token"]))
        elif form.get("grant_type") != "client_credentials":
            return 400, {"error": "unsupported_grant_type"}
        self.granted.append(f"access-{len(self.asked)}")
        return 200, {**answer, "access_token": self.granted[-1]}

    @staticmethod
    def _client(fields: dict[str, str], form: dict[str, str]) -> tuple[str, str]:
        kind, _, said = fields.get("authorization", "").partition(" ")
        if kind.lower() == "basic":
            name, _, secret = base64.b64decode(said).decode().partition(":")
            return unquote(name), unquote(secret)
        return form.get("client_id", ""), form.get("client_secret", "")


@asynccontextmanager
async def token_endpoint(place: Path, name: str, address: str, port: int = 0) -> AsyncIterator[TokenEndpoint]:
    """One for that name, listening there. Its certificate, which vouches for itself, lies at `authority`."""
    made = TokenEndpoint()
    made.authority, key = certificate(place, "endpoint", f"DNS:{name}")
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(made.authority, key)
    server = await asyncio.start_server(made.serve, address, port, ssl=tls)
    made.port = server.sockets[0].getsockname()[1]
    try:
        yield made
    finally:
        server.close()
        await server.wait_closed()
