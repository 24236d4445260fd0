"""One stream of a session: send, and iterate over what comes. The same object for the side that opened it and the side that serves it.

Credit is returned as the consumer takes. A consumer or a sender that is cancelled resets a stream that this side opened: half an answer
is of no use to anybody. (On the served side the end of the handler decides.) What came before a reset or the session's end is still
handed out, then the error is raised.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Self

import msgspec

from space.core.wire.events import Data, Message
from space.core.wire.inbox import Inbox
from space.model.errors import Conflict, SpaceError, TooLarge, from_code

if TYPE_CHECKING:
    from space.core.wire.mux import Acceptor, Opener
    from space.rpc.link import Link, PipeEnd

Buffer = bytes | bytearray | memoryview
# TCP has two directions that end apart; of every other verb the end of the answer is the end of the stream.
_TWO_ENDS = frozenset({"connect"})


class Gate:
    """Tasks wait at it until it is opened once more."""

    __slots__ = ("_waiters",)

    def __init__(self) -> None:
        self._waiters: list[asyncio.Future[None]] = []

    async def wait(self) -> None:
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        try:
            await waiter
        finally:
            if waiter in self._waiters:
                self._waiters.remove(waiter)

    def open(self) -> None:
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)


class Stream:
    """See the module. Use it as a context manager, so that leaving early resets it."""

    __slots__ = (
        "_arrived", "_closed", "_credit", "_end", "_ended", "_failure", "_hold", "_inbox", "_limit", "_link", "_mine", "number", "verb"
    )  # fmt: skip

    def __init__(
        self, link: Link[Opener] | Link[Acceptor], end: PipeEnd, number: int, verb: str, limit: int, *, mine: bool, hold: bool = False
    ) -> None:
        self.number = number
        self.verb = verb
        self._link = link
        self._end = end
        self._limit = limit
        self._mine = mine  # we opened it
        self._hold = hold or verb in _TWO_ENDS  # the peer's end is not ours
        self._inbox = Inbox()
        self._credit = Gate()
        self._arrived: asyncio.Future[None] | None = None
        self._closed = False  # we send nothing more
        self._ended = False  # the peer sends nothing more
        self._failure: Callable[[], SpaceError] | None = None

    # Sending

    async def send(self, data: Buffer, lane: int = 0) -> None:
        """Send bytes, in frames; returns when the transport has taken them all. lane: 0 main, 1 stderr.

        Waits for credit and for the transport's buffer. Raises the stream's or session's error when they end first, Conflict after
        our own `close`. Cancellation resets a stream that we opened.
        """
        view = memoryview(data).cast("B")
        at = 0
        while at < len(view):
            at += await self.send_some(view[at:], lane)

    async def send_some(self, data: memoryview, lane: int = 0) -> int:
        """Send as much as fits a frame, as soon as anything does; how many bytes. See `send`."""
        size = min(await self._room(1), self._limit, len(data))
        self._end.write(self._link.mux.send_data(self.number, data[:size], lane))
        return size

    async def send_message(self, message: msgspec.Struct | Buffer, *, last: bool = False) -> None:
        """Send one message: a struct, or its MessagePack. TooLarge when it does not fit a frame; else as `send`.

        last: `close` as well, in the same write. (A peer that waits for both wakes once, and not for each.)
        """
        payload = msgspec.msgpack.encode(message) if isinstance(message, msgspec.Struct) else message
        if len(payload) > self._limit:
            raise TooLarge(f"the message has {len(payload)} bytes, at most {self._limit} fit")
        await self._room(len(payload))
        frame = self._link.mux.send_message(self.number, payload)
        if last:
            self._closing(frame)
        else:
            self._end.write(frame)

    @property
    def room(self) -> int:
        """Bytes of credit left: what the window has more is not yet credited by the peer. 0 once nothing can be sent."""
        return self._link.mux.may_send(self.number)

    async def close(self) -> None:
        """We send nothing more. Idempotent; nothing happens on a stream that has ended."""
        self.close_now()

    async def reset(self, code: str, message: str) -> None:
        """End the stream in both directions, with a code of `space.model.errors`. Idempotent."""
        self.reset_now(code, message)

    def close_now(self) -> None:
        """`close`, for callers that cannot wait."""
        if not self._closed and not self._failure:
            self._closing(b"")

    def _closing(self, before: bytes) -> None:
        self._closed = True
        self._end.write(before + self._link.mux.send_close(self.number))
        self._credit.open()
        if self._ended:
            self._link.forget(self)

    def finished_at_open(self) -> bytes:
        """The CLOSE that is written with the OPEN."""
        self._closed = True
        return self._link.mux.send_close(self.number)

    def reset_now(self, code: str, message: str, hint: str = "") -> None:
        """`reset`, for callers that cannot wait."""
        if self._failure or (self._closed and self._ended):
            return
        self._link.write(0, self._link.mux.send_reset(self.number, code, message, hint))
        self._inbox.clear()
        self._ended = False
        self.fail(lambda: from_code(code, message, hint=hint or None))
        self._link.forget(self)

    async def _room(self, least: int) -> int:
        """The credit, when it is at least that and the transport takes more."""
        try:
            while True:
                if self._failure:
                    raise self._failure()
                if self._closed:
                    raise Conflict(f"stream {self.number} ({self.verb}) is closed for sending")
                if self._end.paused:
                    await self._end.drained.wait()
                    continue
                if self._link.still:
                    await self._credit.wait()
                    continue
                room = self._link.mux.may_send(self.number)
                if room >= least:
                    return room
                await self._credit.wait()
        except asyncio.CancelledError:
            self._abandoned("the sender was cancelled")
            raise

    # Receiving

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Data | Message:
        """The next piece (`payload` has its bytes); the end when the peer closed. One consumer at a time.

        Raises the error of the peer's reset, or of the session's end. On a stream that we opened cancellation resets it, and the end
        closes our side as well: no verb but `connect` takes anything after its answer.
        """
        while True:
            event = self._inbox.take(self.number)
            if event is not None:
                credit = self._link.mux.took(self.number, len(event.payload))
                if credit:
                    self._link.write(0, credit)
                return event
            if self._ended:  # before the failure: what came is whole
                if self._mine and not self._hold:
                    self.close_now()
                raise StopAsyncIteration
            if self._failure:
                raise self._failure()
            if self._arrived is not None:
                raise RuntimeError(f"stream {self.number} ({self.verb}) has two consumers")
            self._arrived = asyncio.get_running_loop().create_future()
            try:
                await self._arrived
            except asyncio.CancelledError:
                self._abandoned("the consumer was cancelled")
                raise
            finally:
                self._arrived = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if isinstance(error, SpaceError):
            self.reset_now(error.code, error.message)
        elif error is not None or not self._ended or (self.verb in _TWO_ENDS and not self._closed):
            self.reset_now("unavailable", "the other side left")
        elif self._mine and not self._closed and not self._failure:
            if self._hold:  # the peer has said its last word: it only has to hear that, some time
                self._closed = True
                self._end.defer(self._link.mux.send_close(self.number))
                self._credit.open()
                self._link.forget(self)
            else:
                self.close_now()

    def _abandoned(self, why: str) -> None:
        if self._mine:
            self.reset_now("unavailable", why)

    # What the link tells

    def arrived(self, event: Data | Message) -> None:
        """Bytes came."""
        self._inbox.put(event)
        self._wake()

    def credited(self) -> None:
        """More may be sent."""
        self._credit.open()

    def ended(self) -> None:
        """The peer sends nothing more."""
        self._ended = True
        self._wake()
        if self._closed:
            self._link.forget(self)

    def fail(self, failure: Callable[[], SpaceError]) -> None:
        """The stream is dead; `failure` makes the error to raise."""
        if self._failure is None and not (self._closed and self._ended):
            self._failure = failure
        self._credit.open()
        self._wake()

    def _wake(self) -> None:
        if self._arrived is not None and not self._arrived.done():
            self._arrived.set_result(None)
