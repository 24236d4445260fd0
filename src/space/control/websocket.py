"""uvicorn's WebSockets with what they leave open: bounded messages, a client that does not read, refusals as problems.

`http` has taken the head, with its limits; then this takes over the connection. A client is alive as long as it answers the ping, sends
anything, or takes any of what waits for it: one that reads slowly, or whose process does not read, is not dead.
"""

from __future__ import annotations

import asyncio
import logging
from http import HTTPStatus
from typing import Any

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.datastructures import Headers
from websockets.exceptions import PayloadTooBig
from websockets.frames import CloseCode, Frame
from websockets.http11 import Response
from websockets.server import ServerProtocol

from space.control import answers, limits
from space.model.errors import Internal, InvalidArgument, SpaceError
from space.model.ids import new_request_id

log = logging.getLogger("space.control.websocket")


class _Handshake(ServerProtocol):
    """Refuses with problems."""

    def reject(self, status: HTTPStatus | int, text: str) -> Response:
        words = text.removeprefix("Failed to open a WebSocket connection: ").strip().removesuffix(".")
        fault: SpaceError = InvalidArgument(f"this is no WebSocket handshake: {words}", hint="RFC 6455, section 4.1; version 13")
        if status >= HTTPStatus.INTERNAL_SERVER_ERROR:
            fault = Internal("the server failed at this request", hint="the server's log has the cause")
        request_id = new_request_id()
        log.info("refused a WebSocket: %s", fault, extra={"request_id": request_id})
        answer = answers.problem(fault, request_id)
        head = {
            **answer.headers,
            "Content-Type": str(answer.media_type),
            "Content-Length": str(len(answer.body)),
            "X-Request-Id": request_id,
            "Connection": "close",
        }
        return Response(fault.status, HTTPStatus(fault.status).phrase, Headers(head), answer.body)


class Protocol(WebSocketsSansIOProtocol):
    """One connection."""

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self.conn = _Handshake(max_size=limits.MAX_MESSAGE, logger=logging.getLogger("uvicorn.error"))
        self.close_timeout = limits.CLOSE_SECONDS
        self.ping_interval = self.ping_timeout = limits.PING_SECONDS
        self._dropping = False  # what still comes is of no use
        self._late_pong = b""
        self._heard = False
        self._waiting = 0
        self._end: asyncio.TimerHandle | None = None
        self._lost: asyncio.Future[None] = self.loop.create_future()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._lost.done():
            self._lost.set_result(None)
        if self._end is not None:
            self._end.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._heard = True
        if self._dropping or self.transport.is_closing():
            return
        super().data_received(data)
        if not self.handshake_initiated:
            # The head is whole, and the library has limits of its own for its lines.
            self.conn.state = self.conn.state.CONNECTING
            self.transport.write(_bytes(self.conn.reject(HTTPStatus.BAD_REQUEST, str(self.conn.handshake_exc))))
            self.transport.close()

    def handle_cont(self, event: Frame) -> None:
        if len(self.frames) >= limits.MAX_FRAGMENTS:
            self.conn.fail(CloseCode.MESSAGE_TOO_BIG, f"more than {limits.MAX_FRAGMENTS} fragments")
            self.handle_parser_exception()
            return
        super().handle_cont(event)

    def handle_ping(self) -> None:
        output = b"".join(self.conn.data_to_send())
        if self.writable.is_set():
            self.transport.write(output)
        elif output:
            self._late_pong = output  # RFC 6455, 5.5.3: the latest is enough; a client that floods without reading fills no memory

    def resume_writing(self) -> None:
        late, self._late_pong = self._late_pong, b""
        if late and not self.close_sent:
            self.transport.write(late)
        super().resume_writing()

    def send_keepalive_ping(self) -> None:
        self._look()
        super().send_keepalive_ping()

    def keepalive_timeout(self) -> None:
        # While we do not read, or a client has much to take, its pong is behind other things.
        if self.read_paused or self._heard or self.transport.get_write_buffer_size() < self._waiting:
            self._look()
            if self.pending_ping_payload is not None:
                # Only writing tells of a client that has gone while nothing is read of it.
                self.conn.send_ping(self.pending_ping_payload)
                self.transport.write(b"".join(self.conn.data_to_send()))
            self.pong_timer = self.loop.call_later(limits.PING_SECONDS, self.keepalive_timeout)
            return
        log.info("a WebSocket's client answered nothing for %g s: cut off", limits.PING_SECONDS)
        if self.transport.get_write_buffer_size():
            self.close_sent = True
            self.transport.abort()
            return
        super().keepalive_timeout()

    def _look(self) -> None:
        self._heard, self._waiting = False, self.transport.get_write_buffer_size()

    def handle_parser_exception(self) -> None:
        """A client that broke the rules: say so, and let it read that before the connection goes."""
        self._dropping = True
        self.frames = []
        fault = self.conn.close_sent
        code, reason = (fault.code, fault.reason) if fault is not None else (1006, "")
        self.queue.put_nowait({"type": "websocket.disconnect", "code": code, "reason": reason})
        if isinstance(self.conn.parser_exc, PayloadTooBig):
            log.info("a WebSocket's message was larger than %d bytes", limits.MAX_MESSAGE)
        self.transport.write(b"".join(self.conn.data_to_send()))
        self.close_sent = True
        if self.read_paused:
            self.read_paused = False
            self.transport.resume_reading()
        self.close_timer = self.loop.call_later(limits.REFUSED_SECONDS, self.transport.close)

    async def send(self, message: Any) -> None:
        await super().send(message)
        if message["type"] == "websocket.http.response.body" and not message.get("more_body", False):
            self.handshake_complete = True  # it was answered: nothing is missing when the application returns

    async def run_asgi(self) -> None:
        self.scope["space.lost"] = self._lost  # type: ignore[typeddict-unknown-key]
        try:
            await super().run_asgi()
        finally:
            # `close` waits for a client that takes what is left; it may never.
            if not self.disconnected:
                self._end = self.loop.call_later(limits.LINGER_SECONDS, self.transport.abort)


def _bytes(response: Response) -> bytes:
    return bytes(response.serialize())
