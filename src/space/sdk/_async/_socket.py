"""A WebSocket with asyncio. Its twin in `_sync` is written by hand too. Foreign exceptions become ours here."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Mapping
from typing import TYPE_CHECKING

from space.model.errors import StreamCut
from space.sdk.endpoint import Endpoint
from space.sdk.sockets import (
    CLOSE_SECONDS,
    OPEN_SECONDS,
    PING_SECONDS,
    QUEUED,
    QUIET,
    SILENCE_SECONDS,
    WRITE_LIMIT,
    Dial,
    opening_fault,
    options,
    socket_url,
)

if TYPE_CHECKING:
    from websockets.asyncio.client import ClientConnection

_HANGS = "the server or its machine hangs"


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
        seconds: float = OPEN_SECONDS,
    ) -> WebSocket:
        """A connection. Before the upgrade the server's problems are raised as their classes; ConnectionFailed when there is no server."""
        from websockets.asyncio.client import connect

        sock = None if dial is None else await asyncio.to_thread(dial)
        try:
            connection = await connect(
                socket_url(endpoint, path, params),
                write_limit=WRITE_LIMIT,
                ping_interval=PING_SECONDS,
                # A pong cannot be read behind messages that wait for their reader; `receive` looks whether the server is there.
                ping_timeout=None,
                open_timeout=seconds,
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
        """The next message; None when the server closed in good order. StreamCut when it gives no sign of life while this waits."""
        from websockets.exceptions import ConnectionClosed, ConnectionClosedOK

        pong: Awaitable[float] | None = None
        while True:
            try:
                async with asyncio.timeout(SILENCE_SECONDS):
                    data = await self._connection.recv()
                break
            except TimeoutError:
                if pong is not None and not asyncio.ensure_future(pong).done():
                    raise StreamCut(f"nothing came from {self._url} for {2 * SILENCE_SECONDS:g} s", hint=_HANGS) from None
                pong = await self._asked()
            except ConnectionClosedOK:
                return None
            except ConnectionClosed as error:
                raise self._cut(error) from error
        return data.encode() if isinstance(data, str) else data

    async def aclose(self) -> None:
        """Close it, whatever was on the way. Idempotent."""
        await self._connection.close()

    async def _asked(self) -> Awaitable[float]:
        """Ask for a sign of life; it comes like a message, so whoever waits for one sees it in time."""
        from websockets.exceptions import ConnectionClosed

        try:
            return await self._connection.ping()
        except ConnectionClosed as error:
            raise self._cut(error) from error

    def _cut(self, error: Exception) -> StreamCut:
        return StreamCut(f"the connection to {self._url} broke: {error}", hint="the server's log may say why")
