"""A WebSocket with asyncio. Its twin in `_sync` is written by hand too. Foreign exceptions become ours here."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping
from typing import TYPE_CHECKING

from space.model.errors import StreamCut
from space.sdk.endpoint import Endpoint
from space.sdk.sockets import (
    CLOSE_SECONDS,
    OPEN_SECONDS,
    PING_SECONDS,
    QUEUED,
    QUIET,
    WRITE_LIMIT,
    Dial,
    opening_fault,
    options,
    socket_url,
)

if TYPE_CHECKING:
    from websockets.asyncio.client import ClientConnection


class WebSocket:
    """Binary messages both ways. One may receive while another sends."""

    def __init__(self, connection: ClientConnection, url: str) -> None:
        self._connection = connection
        self._url = url

    @classmethod
    async def open(
        cls,
        endpoint: Endpoint,
        path: str,
        params: Mapping[str, str],
        *,
        dial: Dial | None,
        tls: ssl.SSLContext | None,
        subprotocol: str | None = None,
    ) -> WebSocket:
        """A connection. Before the upgrade the server's problems are raised as their classes; ConnectionFailed when there is no server."""
        from websockets.asyncio.client import connect

        sock = None if dial is None else await asyncio.to_thread(dial)
        try:
            connection = await connect(
                socket_url(endpoint, path, params),
                write_limit=WRITE_LIMIT,
                ping_interval=PING_SECONDS,
                ping_timeout=PING_SECONDS,
                open_timeout=OPEN_SECONDS,
                close_timeout=CLOSE_SECONDS,
                max_queue=QUEUED,
                logger=QUIET,
                sock=sock,
                **options(endpoint, tls, subprotocol),
            )
        except Exception as error:
            raise opening_fault(error, endpoint.url) from error
        return cls(connection, endpoint.url)

    async def send(self, data: bytes) -> None:
        """Send one message; waits while the server takes nothing."""
        from websockets.exceptions import ConnectionClosed

        try:
            await self._connection.send(data)
        except ConnectionClosed as error:
            raise self._cut(error) from error

    async def receive(self) -> bytes | None:
        """The next message; None when the server closed in good order."""
        from websockets.exceptions import ConnectionClosed, ConnectionClosedOK

        try:
            data = await self._connection.recv()
        except ConnectionClosedOK:
            return None
        except ConnectionClosed as error:
            raise self._cut(error) from error
        return data.encode() if isinstance(data, str) else data

    async def aclose(self) -> None:
        """Close it, whatever was on the way. Idempotent."""
        await self._connection.close()

    def _cut(self, error: Exception) -> StreamCut:
        return StreamCut(f"the connection to {self._url} broke: {error}", hint="the server's log may say why")
