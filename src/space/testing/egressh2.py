"""Upstream servers of HTTP/2, and a client that says what it is told to, with the library's state or bytes of its own."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections import defaultdict
from collections.abc import Awaitable, Callable
from typing import Any

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.events import (
    DataReceived,
    Event,
    RequestReceived,
    ResponseReceived,
    StreamEnded,
    StreamReset,
    TrailersReceived,
)
from h2.exceptions import H2Error
from h2.settings import SettingCodes

from space.core.wire.http2frames import GOAWAY, FrameReader
from space.testing.egress import server_context
from space.testing.egresslab import ALLOWED, Place

Fields = list[tuple[bytes, bytes]]


class Talk:
    """One side of one connection. Subclasses say what to do with an event."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, client: bool, streams: int = 100) -> None:
        self.h2 = H2Connection(H2Configuration(client_side=client, header_encoding=None, validate_outbound_headers=False))
        self.h2.config.normalize_outbound_headers = False
        self.reader, self.writer = reader, writer
        self.changed = asyncio.Event()
        self.closed = False
        self.h2.local_settings[SettingCodes.MAX_CONCURRENT_STREAMS] = streams
        self.h2.local_settings.acknowledge()
        self.h2.initiate_connection()
        self.flush()

    def flush(self) -> None:
        with contextlib.suppress(ConnectionError, RuntimeError):
            self.writer.write(self.h2.data_to_send())

    async def run(self) -> None:
        try:
            while data := await self.reader.read(65_536):
                for event in self.events(data):
                    self.saw(event)
                self.flush()
                self._wake()
        except (ConnectionError, ssl.SSLError, H2Error):
            pass
        finally:
            self.closed = True
            self._wake()
            self.writer.close()

    def events(self, data: bytes) -> list[Event]:
        return self.h2.receive_data(data)

    def _wake(self) -> None:
        self.changed.set()
        self.changed = asyncio.Event()

    async def until(self, what: Callable[[], object]) -> None:
        async with asyncio.timeout(20):
            while not what():
                assert not self.closed, "the connection has ended"
                await self.changed.wait()

    async def data(self, stream: int, data: bytes, *, ended: bool = False) -> None:
        """All of it, as windows allow."""
        view = memoryview(data)
        while view or ended:
            size = min(len(view), self.h2.local_flow_control_window(stream), self.h2.max_outbound_frame_size)
            if view and size <= 0:
                await self.until(lambda: self.h2.local_flow_control_window(stream) > 0)
                continue
            last = ended and size == len(view)
            self.h2.send_data(stream, bytes(view[:size]), end_stream=last)
            view = view[size:]
            self.flush()
            await self.writer.drain()
            if last:
                return

    def saw(self, event: Event) -> None:
        raise NotImplementedError


class Call:
    """What a server got on one stream, or a client."""

    def __init__(self, talk: Talk, stream: int) -> None:
        self.talk, self.stream = talk, stream
        self.fields: Fields = []
        self.trailers: Fields | None = None
        self.got = bytearray()
        self.size = 0
        self.ended = False
        self.error: int | None = None
        self.paused = False
        self._owed = 0

    @property
    def status(self) -> int:
        return int(dict(self.fields)[b":status"])

    def __getitem__(self, name: bytes) -> bytes:
        return dict(self.fields)[name]

    def take(self, event: DataReceived) -> None:
        self.size += len(event.data)
        if self.size < 100_000:
            self.got += event.data
        self._owed += event.flow_controlled_length
        if not self.paused:
            self.read_on()

    def read_on(self) -> None:
        self.paused = False
        owed, self._owed = self._owed, 0
        self.talk.h2.acknowledge_received_data(owed, self.stream)
        self.talk.flush()

    async def over(self) -> Call:
        await self.talk.until(lambda: self.ended or self.error is not None)
        return self


class Served(Talk):
    """A server's side. answer: a task for each request."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, upstream: Http2Upstream, answer: Callable[[Call], Awaitable[None]]
    ) -> None:
        super().__init__(reader, writer, client=False, streams=upstream.streams)
        self.upstream, self.answer = upstream, answer
        self.calls: dict[int, Call] = {}
        self.tasks: set[asyncio.Task[None]] = set()

    def saw(self, event: Event) -> None:
        if isinstance(event, RequestReceived):
            call = self.calls[event.stream_id] = Call(self, event.stream_id)
            call.fields = [(bytes(name), bytes(value)) for name, value in event.headers]
            self.upstream.calls.append(call)
            task = asyncio.get_running_loop().create_task(self._run(call))
            self.tasks.add(task)
            task.add_done_callback(self.tasks.discard)
        elif isinstance(event, DataReceived):
            self.calls[event.stream_id].take(event)
        elif isinstance(event, TrailersReceived):
            self.calls[event.stream_id].trailers = [(bytes(name), bytes(value)) for name, value in event.headers]
        elif isinstance(event, StreamEnded):
            self.calls[event.stream_id].ended = True
        elif isinstance(event, StreamReset):
            self.calls[event.stream_id].error = int(event.error_code)

    async def _run(self, call: Call) -> None:
        with contextlib.suppress(H2Error, ConnectionError, AssertionError, TimeoutError):
            await self.answer(call)

    def respond(self, call: Call, fields: Fields, *, ended: bool = False) -> None:
        self.h2.send_headers(call.stream, fields, end_stream=ended)
        self.flush()


class Http2Upstream:
    """calls: every request that it got, of all connections."""

    def __init__(self, answer: Callable[[Call], Awaitable[None]] | None = None, *, streams: int = 100) -> None:
        self.streams = streams
        self.calls: list[Call] = []
        self.connections: list[Served] = []
        self.open = 0
        self._answer = answer or self.answer
        self._server: asyncio.Server | None = None

    async def start(self, context: ssl.SSLContext, address: str = "127.0.0.1", port: int = 0) -> int:
        self._server = await asyncio.start_server(self._serve, address, port, ssl=context)
        return int(self._server.sockets[0].getsockname()[1])

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        served = Served(reader, writer, self, self._answer)
        self.connections.append(served)
        self.open += 1
        try:
            await served.run()
        finally:
            self.open -= 1
            for task in served.tasks:
                task.cancel()

    async def answer(self, call: Call) -> None:
        """Says what was asked, once the body is there."""
        await call.over()
        served = call.talk
        assert isinstance(served, Served)
        said = b"%s %s got %d" % (call[b":method"], call[b":path"], call.size)
        bare = call[b":method"] == b"HEAD"
        served.respond(call, [(b":status", b"200"), (b"alt-svc", b'h3=":443"'), (b"content-length", b"%d" % len(said))], ended=bare)
        if not bare:
            await served.data(call.stream, said, ended=True)

    def close(self) -> None:
        if self._server is not None:
            self._server.close()


async def serve_h2(
    at: Place,
    name: str = ALLOWED,
    answer: Callable[[Call], Awaitable[None]] | None = None,
    *,
    protocols: tuple[str, ...] = ("h2", "http/1.1"),
    streams: int = 100,
) -> Http2Upstream:
    """An upstream of that name."""
    upstream = Http2Upstream(answer, streams=streams)
    context = server_context(at.lab.signer.make(name), at.directory)
    context.set_alpn_protocols(list(protocols))
    at.lab.dialer.places[name, at.port] = ("127.0.0.1", await upstream.start(context))
    at.upstreams[name] = upstream  # type: ignore[assignment]  # open and close are all that a place wants of it
    return upstream


class Guest(Talk):
    """A client's side."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, host: bytes) -> None:
        super().__init__(reader, writer, client=True)
        self.host = host
        self.calls: defaultdict[int, Call] = defaultdict(lambda: Call(self, 0))
        self.goaway: int | None = None
        self.frames = FrameReader(preface=False)
        self.task = asyncio.get_running_loop().create_task(self.run())

    def events(self, data: bytes) -> list[Event]:
        """The library would take nothing any more behind GOAWAY."""
        events: list[Event] = []
        for frame in self.frames.receive(data):
            if frame.kind == GOAWAY:
                self.goaway = int.from_bytes(frame.payload[4:8], "big")
            else:
                events += self.h2.receive_data(frame.raw)
        return events

    def saw(self, event: Event) -> None:
        stream: Any = getattr(event, "stream_id", 0)
        if not stream or stream not in self.calls:
            return
        call = self.calls[stream]
        if isinstance(event, ResponseReceived):
            call.fields = [(bytes(name), bytes(value)) for name, value in event.headers]
        elif isinstance(event, TrailersReceived):
            call.trailers = [(bytes(name), bytes(value)) for name, value in event.headers]
        elif isinstance(event, DataReceived):
            call.take(event)
        elif isinstance(event, StreamEnded):
            call.ended = True
        elif isinstance(event, StreamReset):
            call.error = int(event.error_code)

    def ask(
        self, path: str = "/", fields: Fields | None = None, *, method: str = "GET", authority: bytes | None = None, ended: bool = True
    ) -> Call:
        """Begin a request."""
        stream = self.h2.get_next_available_stream_id()
        call = self.calls[stream] = Call(self, stream)
        head = [(b":method", method.encode()), (b":scheme", b"https"), (b":authority", authority or self.host), (b":path", path.encode())]
        self.h2.send_headers(stream, head + (fields or []), end_stream=ended)
        self.flush()
        return call

    async def get(self, path: str = "/", fields: Fields | None = None, **how: Any) -> Call:
        return await self.ask(path, fields, **how).over()

    def reset(self, call: Call) -> None:
        self.h2.reset_stream(call.stream, ErrorCodes.CANCEL)
        self.flush()

    async def close(self) -> None:
        self.writer.close()
        await self.task


async def guest(at: Place, name: str = ALLOWED, *, protocols: tuple[str, ...] = ("h2", "http/1.1")) -> Guest:
    """A client whose handshake agreed on HTTP/2."""
    context = at.lab.client_context()
    context.set_alpn_protocols(list(protocols))
    reader, writer = await at.tls(name, context=context)
    assert writer.get_extra_info("ssl_object").selected_alpn_protocol() == "h2"
    return Guest(reader, writer, at.host(name))
