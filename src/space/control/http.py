"""uvicorn with what it leaves open: limits on heads, slow heads, connections and unread bodies; problems instead of plain text; no ticking.

httptools has no limit on a head, and uvicorn no time limit for one. A server that is idle must not wake: uvicorn's main
loop ticks ten times a second, this one waits for a signal.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
from collections.abc import Callable, Iterator
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from space.control import answers, limits, websocket
from space.control.handover import HandOver
from space.model.errors import InvalidArgument, SpaceError, TooLarge, Unavailable
from space.model.ids import new_request_id
from space.rpc.ingress_api import Api

log = logging.getLogger("space.control.http")


class HeadTooLarge(TooLarge):
    """The request line and headers together are too large."""

    status, title = 431, "Request header fields too large"


class Protocol(HttpToolsProtocol):
    """One connection."""

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self._in_head = True
        self._head_bytes = 0
        self._head_timer: asyncio.TimerHandle | None = None
        self._in_body = False
        self._linger_timer: asyncio.TimerHandle | None = None
        self._stall_timer: asyncio.TimerHandle | None = None
        self._waiting = 0  # bytes that the client had not taken when it was last looked at
        self._heard = False
        self._refusal: SpaceError | None = None
        self._refused = False
        self._begun = False  # a message is under way
        self._over = False  # this request is for the ingress
        self._used = False  # what was read last began with another message
        self._whole = False  # `_raw` has the message from its first byte
        self._raw: list[bytes] = []
        self.passed: Api | None = None  # the ingress passed this client on

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if self.passed is not None:
            self.client, self.server = (self.passed.client, 0), ("127.0.0.1", 0)
            self.scheme = "https" if self.passed.secure else "http"
        else:
            sock: socket.socket = transport.get_extra_info("socket")
            # A client whose machine has gone must not hold its process, or its place, for ever.
            for option, value in ((socket.TCP_KEEPIDLE, 30), (socket.TCP_KEEPINTVL, 10), (socket.TCP_KEEPCNT, 3)):
                sock.setsockopt(socket.IPPROTO_TCP, option, value)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if len(self.connections) > limits.MAX_CONNECTIONS:
            self._refuse(Unavailable(f"{limits.MAX_CONNECTIONS} connections are open", hint="repeat in a second"))
            return
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timers()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._refused or self.transport.is_closing():
            return
        self._heard = True
        if self._in_head:
            self._head_bytes += len(data)
            if self._head_timer is None:
                self._await_head()
        if self._begun:
            if self._in_head:
                self._raw.append(data)
            self._used = True
        else:
            self._raw, self._used = [data], False
        super().data_received(data)
        if self._in_head and self._head_bytes > limits.MAX_HEAD and not self._refused:
            self._refuse(_too_large())

    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch()

    def resume_writing(self) -> None:
        if self._stall_timer is not None:
            self._stall_timer.cancel()
            self._stall_timer = None
        super().resume_writing()

    def _watch(self) -> None:
        self._waiting, self._heard = self.transport.get_write_buffer_size(), False
        self._stall_timer = self.loop.call_later(limits.STALL_SECONDS, self._look)

    def _look(self) -> None:
        """A client that neither takes nor sends holds a place, and a process, for nothing."""
        if self._heard or self.transport.get_write_buffer_size() < self._waiting:
            self._watch()
            return
        self._stall_timer = None
        log.info("a client took nothing for %g s while %d bytes waited: cut off", limits.STALL_SECONDS, self._waiting)
        self.transport.abort()

    def on_message_begin(self) -> None:
        self._whole, self._used, self._begun = not self._used, True, True
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        if self._is_for_ingress():
            self._over = self._whole and (self.cycle is None or self.cycle.response_complete)
            self._refusal = InvalidArgument("requests to ports come one after another", hint="wait for the answer before the next one")
            raise ValueError("it is not for us")  # the parser stops, and uvicorn calls send_400_response
        self._in_head = False
        self._in_body = True
        self._raw = []
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None
        if len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers) > limits.MAX_HEAD:
            self._refusal = _too_large()
            raise ValueError("the head is too large")  # the parser stops, and uvicorn calls send_400_response
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._in_head = True
        self._begun = False
        self._head_bytes = 0
        self._in_body = False
        if self._linger_timer is not None:
            self._linger_timer.cancel()
            self._linger_timer = None
        super().on_message_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._in_body and self._linger_timer is None and not self.transport.is_closing():
            self._linger_timer = self.loop.call_later(limits.LINGER_SECONDS, self._give_up)

    def _should_upgrade(self) -> bool:
        # Any other request with these headers is answered as if it had none, which RFC 9110, 7.8 allows.
        return super()._should_upgrade() and self.parser.get_method() == b"GET" and self.parser.get_http_version() == "1.1"

    def _is_for_ingress(self) -> bool:
        hand_over = self.config.hand_over if isinstance(self.config, Config) else None
        return hand_over is not None and self.passed is None and hand_over.wanted(self.headers, (self.server or ("", 0))[0])

    def _hand_over(self) -> None:
        """The connection, from this request's first byte on, is the ingress's."""
        assert isinstance(self.config, Config)
        assert self.config.hand_over is not None
        self._stop_timers()
        self._refused = True
        self.connections.discard(self)
        data, self._raw = b"".join(self._raw), []
        self.config.hand_over.take(self.transport, (self.client or ("", 0))[0], data, secure=self.scheme == "https")

    def send_400_response(self, msg: str) -> None:
        if self._over:
            self._hand_over()
            return
        self._refuse(self._refusal or InvalidArgument("this is not HTTP/1.1", hint="a server with TLS is asked with https://"))

    def _await_head(self) -> None:
        self._head_timer = self.loop.call_later(limits.HEAD_SECONDS, self._give_up)

    def _give_up(self) -> None:
        if not self.transport.is_closing():
            self.transport.close()

    def _stop_timers(self) -> None:
        for timer in (self._head_timer, self._linger_timer, self._stall_timer):
            if timer is not None:
                timer.cancel()
        self._head_timer = self._linger_timer = self._stall_timer = None

    def _refuse(self, error: SpaceError) -> None:
        """An answer from below the application, then the end."""
        self._stop_timers()
        self._refused = True
        if self.cycle is not None and not self.cycle.response_complete:
            # An answer is on its way: another head in the middle of it would be read as a part of it.
            self.transport.close()
            return
        request_id = new_request_id()
        log.info("refused a connection: %s", error, extra={"request_id": request_id})
        answer = answers.problem(error, request_id)
        head = {
            **answer.headers,
            "Content-Type": str(answer.media_type),
            "Content-Length": str(len(answer.body)),
            "X-Request-Id": request_id,
            "Connection": "close",
        }
        lines = [STATUS_LINE[error.status], *(f"{name}: {value}\r\n".encode() for name, value in head.items())]
        self.transport.write(b"".join([*lines, b"\r\n", answer.body]))
        if not self.transport.can_write_eof():
            self.transport.close()
            return
        # Closing while the client still sends would reset the connection, and the answer with it.
        self.transport.write_eof()
        self._linger_timer = self.loop.call_later(limits.REFUSED_SECONDS, self._give_up)


def _too_large() -> HeadTooLarge:
    return HeadTooLarge(f"the request line and headers are larger than {limits.MAX_HEAD} bytes together")


class Config(uvicorn.Config):
    """uvicorn's, and who takes clients that ask for ports."""

    hand_over: HandOver | None = None


class Server(uvicorn.Server):
    """Runs until SIGTERM, SIGINT or `stop`."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._stopped = asyncio.Event()
        self.on_stop: Callable[[], None] = lambda: None

    def stop(self) -> None:
        """Finish what is in hand for a moment, then end."""
        self.should_exit = True
        self.on_stop()
        self._stopped.set()

    def accept(self, transport: asyncio.Transport, said: Api, data: bytes) -> None:
        """Serve a client that the ingress passed on. data: what came already."""
        if self._stopped.is_set() or not self.started:
            transport.abort()
            return
        protocol = Protocol(config=self.config, server_state=self.server_state, app_state=self.lifespan.state)
        protocol.passed = said
        transport.set_protocol(protocol)
        protocol.connection_made(transport)
        if data:
            protocol.data_received(data)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.stop)
        try:
            yield
        finally:
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.remove_signal_handler(number)

    async def main_loop(self) -> None:
        await self._stopped.wait()


def config(app: Any, *, certificate: str | None = None, key: str | None = None, hand_over: HandOver | None = None) -> Config:
    """uvicorn's, with nothing of it left to chance. certificate: a PEM file, which holds the key too without `key`. InvalidArgument."""
    made = Config(
        app,
        http=Protocol,
        ws=websocket.Protocol,
        ws_per_message_deflate=False,  # a kilobyte may unpack to a megabyte, and a shell's output gains little
        loop="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        date_header=False,
        timeout_keep_alive=limits.KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=3,
        backlog=1024,
        ssl_certfile=certificate,
        ssl_keyfile=key,
    )
    made.hand_over = hand_over
    try:
        made.load()
    except OSError as error:  # ssl.SSLError is one
        raise InvalidArgument(
            f"the TLS certificate and key cannot be used: {error.strerror or error}",
            hint="tls_certificate and tls_key name PEM files that belong together, the key without a passphrase",
        ) from error
    return made
