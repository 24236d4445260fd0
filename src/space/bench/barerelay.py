"""The bare relay that the gateway is measured beside: TLS on both sides, requests parsed and written anew, no policy, no record, no check.

    python -m space.bench.barerelay LISTEN_FD CERTIFICATE UPSTREAM_PORT ROOT NAME

uvloop's own TLS, httptools' parser, a kept connection to the upstream for each of the client's: what Python can do at best.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import sys
from typing import Any, cast

import httptools
import uvloop


class _Side(asyncio.Protocol):
    """One end. Its own messages are parsed and go to the other."""

    other: _Side | None = None

    def __init__(self, *, upstream: bool) -> None:
        self._parser: Any = httptools.HttpResponseParser(self) if upstream else httptools.HttpRequestParser(self)
        self._upstream = upstream
        self._url = b""
        self._fields: list[bytes] = []
        self._unsent: list[bytes] = []
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        for data in self._unsent:
            self._transport.write(data)
        self._unsent.clear()

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_message_begin(self) -> None:
        self._url, self._fields = b"", []

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._fields.append(name + b": " + value + b"\r\n")

    def on_headers_complete(self) -> None:
        if self._upstream:
            line = b"HTTP/1.1 %d OK\r\n" % self._parser.get_status_code()
        else:
            line = self._parser.get_method() + b" " + self._url + b" HTTP/1.1\r\n"
        self._pass(line + b"".join(self._fields) + b"\r\n")

    def on_body(self, body: bytes) -> None:
        self._pass(body)

    def _pass(self, data: bytes) -> None:
        if self.other is not None:
            self.other.send(data)

    def send(self, data: bytes) -> None:
        """To this end's peer."""
        if self._transport is None:
            self._unsent.append(data)
        else:
            self._transport.write(data)

    def pause_writing(self) -> None:
        if self.other is not None and self.other._transport is not None:
            self.other._transport.pause_reading()

    def resume_writing(self) -> None:
        if self.other is not None and self.other._transport is not None:
            self.other._transport.resume_reading()

    def connection_lost(self, _: Exception | None) -> None:
        if self.other is not None and self.other._transport is not None:
            self.other._transport.close()


class _Client(_Side):
    def __init__(self, port: int, context: ssl.SSLContext, name: str) -> None:
        super().__init__(upstream=False)
        self._to = (port, context, name)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.other = _Side(upstream=True)
        self.other.other = self
        self._task = asyncio.get_running_loop().create_task(self._connect(self.other))

    async def _connect(self, side: _Side) -> None:
        port, context, name = self._to
        await asyncio.get_running_loop().create_connection(lambda: side, "127.0.0.1", port, ssl=context, server_hostname=name)


async def main(listen_fd: int, certificate: str, port: int, root: str, name: str) -> None:
    """Until it is killed."""
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(certificate)
    server.set_alpn_protocols(["http/1.1"])
    client = ssl.create_default_context(cafile=root)
    client.set_alpn_protocols(["http/1.1"])
    listener = socket.socket(fileno=listen_fd)
    made = await asyncio.get_running_loop().create_server(lambda: _Client(port, client, name), sock=listener, ssl=server, backlog=512)
    print("ready", flush=True)
    await made.serve_forever()


if __name__ == "__main__":
    uvloop.run(main(int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), sys.argv[4], sys.argv[5]))
