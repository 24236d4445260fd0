"""What both sides of a session share: sockets as asyncio protocols, the mux between, streams by number, one end for all of them.

(Measured in one process over a socket pair: asyncio's StreamReader and StreamWriter move 0.3 GB/s, a Protocol 0.8 to 1.7 GB/s.)
"""

from __future__ import annotations

import asyncio
import functools
import socket
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar, cast

from space.core.wire.events import Answer, Broken, Closed, Credited, Data, Event, Layout, Message, WasReset
from space.core.wire.mux import Acceptor, Opener
from space.model.errors import ProtocolError, SpaceError
from space.rpc.stream import Gate, Stream

_HIGH_WATER = 512 << 10
_SEND_BUFFER = 512 << 10  # two of the largest frames: with the usual 208 KiB every frame takes two system calls
_DEFERRED = 0.2  # seconds that a frame which nobody waits for may wait for another that it can go with
_MOST_UNREAD = 2 << 20  # answers to a peer that sends pings and reads nothing

M = TypeVar("M", Opener, Acceptor)


def _same(end: PipeEnd) -> PipeEnd:
    return end


class PipeEnd(asyncio.Protocol):
    """Our end of one pipe."""

    def __init__(self, number: int, received: Callable[[int, bytes], None], lost: Callable[[str], None]) -> None:
        self._number = number
        self._received = received
        self._lost = lost
        self.transport: asyncio.Transport | None = None
        self.paused = False
        self.drained = Gate()
        self._deferred = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self.transport.set_write_buffer_limits(high=_HIGH_WATER)
        self.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER)

    def data_received(self, data: bytes) -> None:
        self._received(self._number, data)

    def connection_lost(self, exc: Exception | None) -> None:
        self.paused = False
        self.drained.open()
        self._lost(f"pipe {self._number} was closed" + (f": {exc}" if exc else " by the peer"))

    def pause_writing(self) -> None:
        self.paused = True

    def resume_writing(self) -> None:
        self.paused = False
        self.drained.open()

    @property
    def unread(self) -> int:
        """Bytes that the kernel has not taken yet."""
        return self.transport.get_write_buffer_size() if self.transport else 0

    def write(self, data: bytes) -> None:
        """Write now, or nothing on a pipe that is gone."""
        if self._deferred:
            data, self._deferred = self._deferred + data, b""
        if data and self.transport and not self.transport.is_closing():
            self.transport.write(data)

    def defer(self, data: bytes) -> None:
        """Write it before the next data, or soon: for what nobody waits for, a wake-up of the peer is too much (30 us, measured)."""
        if not self._deferred:
            asyncio.get_running_loop().call_later(_DEFERRED, self.write, b"")
        self._deferred += data

    def abort(self) -> None:
        """Close at once; what is not written is dropped."""
        self.paused = False
        self.drained.open()
        if self.transport:
            self.transport.abort()


class Link(Generic[M]):
    """A session's I/O. `Session` and `Served` are its two sides."""

    def __init__(self, mux: M, layout: Layout) -> None:
        self.mux: M = mux
        self.ends = [PipeEnd(number, self._received, self._lost) for number in range(len(layout))]
        self.closed: asyncio.Future[SpaceError] = asyncio.get_running_loop().create_future()
        self.still = False  # streams say nothing for now
        self._layout = layout
        self._streams: dict[int, Stream] = {}
        self._tell: dict[type[Event], Callable[..., None]] = {
            Data: self._on_bytes,
            Message: self._on_bytes,
            Credited: self._on_credited,
            Closed: self._on_closed,
            WasReset: self._on_reset,
            Answer: self._on_answer,
            Broken: self._on_broken,
        }

    async def attach(self, sockets: Sequence[socket.socket]) -> None:
        """Take the sockets over. After an error or a cancellation all are closed."""
        loop = asyncio.get_running_loop()
        try:
            for end, sock in zip(self.ends, sockets, strict=True):
                sock.setblocking(False)
                await loop.create_connection(functools.partial(_same, end), sock=sock)
        except BaseException:
            self.die("the session was not begun")
            for sock in sockets:
                sock.close()
            raise

    def write(self, pipe: int, data: bytes) -> None:
        """Write on that pipe, in the order of the calls."""
        self.ends[pipe].write(data)

    def forget(self, stream: Stream) -> None:
        """The stream has ended."""
        self._streams.pop(stream.number, None)

    def death(self, cause: SpaceError) -> SpaceError:
        """What a stream of a dead session raises."""
        raise NotImplementedError

    def fault(self, event: WasReset) -> SpaceError:
        """What a stream that the peer reset raises."""
        raise NotImplementedError

    def die(self, cause: str | SpaceError) -> None:
        """End the session: every stream fails, every pipe is closed. Idempotent."""
        if self.closed.done():
            return
        error = self.death(cause if isinstance(cause, SpaceError) else SpaceError(cause))
        self.closed.set_result(error)
        for end in self.ends:
            end.abort()
        self._end_streams(error)

    def _end_streams(self, error: SpaceError) -> None:
        streams, self._streams = self._streams, {}
        for stream in streams.values():
            stream.fail(lambda: type(error)(error.message, hint=error.hint))

    def _lost(self, why: str) -> None:
        self.die(why)

    def _received(self, pipe: int, data: bytes) -> None:
        for event in self.mux.receive(pipe, data):
            self._tell[type(event)](event)

    def _on_bytes(self, event: Data | Message) -> None:
        stream = self._streams.get(event.stream)
        if stream is None:
            return
        try:
            stream.arrived(event)
        except ProtocolError as error:
            self._on_broken(Broken(error))

    def _on_credited(self, event: Credited) -> None:
        stream = self._streams.get(event.stream)
        if stream is not None:
            stream.credited()

    def _on_closed(self, event: Closed) -> None:
        stream = self._streams.get(event.stream)
        if stream is not None:
            stream.ended()

    def _on_reset(self, event: WasReset) -> None:
        stream = self._streams.pop(event.stream, None)
        if stream is not None:
            stream.fail(lambda: self.fault(event))

    def _on_answer(self, event: Answer) -> None:
        self.write(event.pipe, event.data)
        if self.ends[event.pipe].unread > _MOST_UNREAD:
            self._on_broken(Broken(ProtocolError("the peer asks for answers and does not read them")))

    def _on_broken(self, event: Broken) -> None:
        self.die(event.error)
