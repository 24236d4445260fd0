"""The opener's side of a session over sockets: a node toward a guest, control toward a node. (The other side is in `served`.)

    session = await Session.open_guest(control, bulk, generation, reconnect=False)
    async with await session.open("exec", request) as stream:
        async for event in stream: ...             # Data(lane, payload) | Message(payload)
    done = await session.call("noop", guest.Empty())

A session needs no task. It has one timer, and that only while a stream is open: PING every 5 s, dead after 30 s without any byte.
A dead session fails every stream with `SandboxDied` (guests) or `Unavailable` (nodes); `closed` has that error as its result.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import msgspec

from space.core.wire.events import GUEST, NODE, Data, Greeted, Layout, Message, Ponged, WasReset
from space.core.wire.mux import Opener
from space.model.errors import (
    BY_CODE,
    Conflict,
    DeadlineExceeded,
    GuestError,
    InvalidArgument,
    NoCapacity,
    NotFound,
    PermissionDenied,
    ProtocolError,
    SandboxDied,
    SpaceError,
    TooLarge,
    Unavailable,
    Unsupported,
    from_code,
)  # fmt: skip
from space.rpc.link import Link
from space.rpc.served import Door, Handler, Served
from space.rpc.stream import Buffer, Stream

__all__ = ["Data", "Door", "Handler", "Heartbeat", "Message", "Served", "Session", "Stream"]

# What a guest may say of itself. Any other code of our tree (sandbox_died, unauthenticated, internal ...) is not its to give.
_GUESTS_CODES = frozenset(
    kind.code
    for kind in (Conflict, DeadlineExceeded, GuestError, InvalidArgument, NoCapacity, NotFound, PermissionDenied, TooLarge, Unsupported)
)
_FIRST_REPEAT, _LAST_REPEAT = 0.02, 0.25
_FIRST_PROOF = 1.0  # seconds; doubled each time, for a guest that is only slow


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """Seconds between PINGs while a stream is open, and without any byte until the peer counts as dead."""

    every: float = 5.0
    dead: float = 30.0


class Parted(Unavailable):
    """The session was given up on purpose: its peer goes on, and is talked to in another one."""


class Session(Link[Opener]):
    """Made by `open_guest` or `connect`."""

    def __init__(self, layout: Layout, generation: int, heartbeat: Heartbeat) -> None:
        super().__init__(Opener(layout, secrets.token_bytes(16), generation), layout)
        self._loop = asyncio.get_running_loop()
        self._greeted: set[int] = set()
        self._token = b""
        self._generation = generation
        self._ready = asyncio.Event()
        self._proven = asyncio.Event()
        self._heartbeat = heartbeat
        self._timer: asyncio.TimerHandle | None = None
        self._heard = self._due = 0.0
        self._pinged = False
        self._held = 0
        self._tell[Greeted] = self._on_greeted
        self._tell[Ponged] = self._on_ponged

    @classmethod
    async def open_guest(
        cls, control: socket.socket, bulk: socket.socket, generation: int, *, reconnect: bool, heartbeat: Heartbeat = Heartbeat()
    ) -> Self:
        """A session with the guest behind two connected stream sockets, which the session takes over in every case.

        Waits as long as the guest boots: bound it with `asyncio.timeout`. reconnect: the guest may have been talked to before, in this
        life of the node or an earlier one; then it also has to answer a PING (see `_begin`).
        Raises SandboxDied when a pipe closes or the peer breaks the protocol meanwhile.
        """
        session = cls(GUEST, generation, heartbeat)
        await session._begin((control, bulk), reconnect=reconnect)
        return session

    @classmethod
    async def connect(cls, path: str | os.PathLike[str], *, heartbeat: Heartbeat = Heartbeat()) -> Self:
        """A session with the node that listens there. Raises Unavailable when nobody does."""
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        sock.setblocking(False)
        try:
            await asyncio.get_running_loop().sock_connect(sock, os.fspath(path))
        except OSError as error:
            sock.close()
            raise Unavailable(f"no node answers on {os.fspath(path)}: {error.strerror or error}") from error
        except BaseException:
            sock.close()
            raise
        session = cls(NODE, 0, heartbeat)
        await session._begin((sock,), reconnect=False)
        return session

    async def _begin(self, sockets: Sequence[socket.socket], *, reconnect: bool) -> None:
        """Greet until the peer answers.

        A guest learns of a host's coming and going on another way than of its bytes (virtio's control queue). Where it is slow, the end
        of the earlier host's connection comes after our HELLO and ends our session instead: it acknowledged, and answers nothing any
        more. So after a reconnect an answer is waited for, and without one everything is begun anew under another nonce.
        """
        await self.attach(sockets)
        try:
            await self._greet(reconnect=reconnect)
            patience = _FIRST_PROOF
            while reconnect and not await self._proof(patience):
                patience *= 2
                self.mux = Opener(self._layout, secrets.token_bytes(16), self._generation)
                self._greeted.clear()
                self._ready.clear()
                await self._greet(reconnect=True)
            if self.closed.done():
                raise self.closed.result()
        except BaseException:
            self.die("the handshake was given up")
            raise

    async def _greet(self, *, reconnect: bool) -> None:
        for number in range(len(self.ends)):
            self.write(number, self.mux.hello(number, reconnect=reconnect))
        pause = _FIRST_REPEAT
        while not self._ready.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._ready.wait()
            pause = min(pause * 2, _LAST_REPEAT)
            for number, end in enumerate(self.ends):
                if number not in self._greeted and not end.unread:
                    self.write(number, self.mux.hello(number))

    async def _proof(self, seconds: float) -> bool:
        """Whether a PING is answered in time, or the session has ended."""
        if self.closed.done():
            return True
        self._proven.clear()
        self._token = secrets.token_bytes(8)
        self.write(0, self.mux.send_ping(self._token))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._proven.wait()
        return self._proven.is_set()

    # Streams

    async def open(
        self, verb: str, request: msgspec.Struct | Buffer, *, bulk: bool = False, finish: bool = False, hold: bool = False
    ) -> Stream:
        """A new stream. request: a struct, or its MessagePack. finish: we send nothing, so CLOSE goes with OPEN, in one write.
        hold: our side stays open at the peer's end, until the stream's context ends or `close`.

        Raises the session's error when it is dead, Conflict when 1,024 streams are open or the request does not fit a frame.
        """
        payload = msgspec.msgpack.encode(request) if isinstance(request, msgspec.Struct) else request
        pipe = len(self.ends) - 1 if bulk else 0
        end = self.ends[pipe]
        while end.paused and not self.closed.done():
            await end.drained.wait()
        if self.closed.done():
            raise self._dead()
        number, frame = self.mux.send_open(verb, payload, bulk=bulk)
        stream = Stream(self, end, number, verb, self._layout[pipe].limit, mine=True, hold=hold)
        self._streams[number] = stream
        if finish:
            frame += stream.finished_at_open()
        end.write(frame)
        if self._timer is None:
            self._heard = self._loop.time()
            self._arm()
        return stream

    async def call(self, verb: str, request: msgspec.Struct | Buffer, *, bulk: bool = False) -> bytes:
        """Ask, and return the one message (MessagePack) that answers. ProtocolError when the answer is not exactly one message."""
        stream = await self.open(verb, request, bulk=bulk, finish=True)
        answer: bytes | None = None
        async with stream:
            async for event in stream:
                if answer is not None or not isinstance(event, Message):
                    raise ProtocolError(f"{verb} was answered with more than one message")
                answer = event.payload
        if answer is None:
            raise ProtocolError(f"{verb} was answered with no message")
        return answer

    # Life

    def hold(self) -> None:
        """The peer is stopped on purpose (a paused VM): its silence means nothing until as many calls of `release`."""
        self._held += 1

    def release(self) -> None:
        """The peer runs again."""
        self._held = max(0, self._held - 1)
        self._heard = self._loop.time()

    async def settle(self, seconds: float) -> bool:
        """Say nothing more in any stream, until `go_on`. Whether the peer has read in that time what was said on the first pipe."""
        self.still = True
        return await self._proof(seconds)

    def go_on(self) -> None:
        """Streams say again what they have to say."""
        self.still = False
        for stream in self._streams.values():
            stream.credited()

    def part(self, why: str) -> None:
        """End the session; every stream fails as `Parted`, whose peer is to be asked again."""
        self.die(Parted(why, hint="repeat it"))

    async def aclose(self) -> None:
        """End the session; streams that are open fail. Idempotent."""
        self.die("it was closed by this side")

    def die(self, cause: str | SpaceError) -> None:
        super().die(cause)
        if self._timer:
            self._timer.cancel()
            self._timer = None
        self._ready.set()
        self._proven.set()

    def death(self, cause: SpaceError) -> SpaceError:
        if isinstance(cause, Parted):
            return cause
        if len(self._layout) == len(GUEST):
            error: SpaceError = SandboxDied(f"the session with the guest ended: {cause.message}")
        else:
            error = Unavailable(f"the session with the node ended: {cause.message}")
        error.__cause__ = cause
        return error

    def fault(self, event: WasReset) -> SpaceError:
        if len(self._layout) == len(GUEST) and event.code not in _GUESTS_CODES:
            return GuestError(f"{event.message} [{event.code}]" if event.code in BY_CODE else event.message)
        return from_code(event.code, event.message, hint=event.hint or None if len(self._layout) != len(GUEST) else None)

    def _dead(self) -> SpaceError:
        error = self.closed.result()
        return type(error)(error.message, hint=error.hint)

    def _received(self, pipe: int, data: bytes) -> None:
        self._heard = self._loop.time()
        super()._received(pipe, data)

    def _on_greeted(self, event: Greeted) -> None:
        self._greeted.add(event.pipe)
        if event.ready:
            self._ready.set()

    def _on_ponged(self, event: Ponged) -> None:
        if event.token == self._token:
            self._proven.set()
        else:
            self._pinged = False

    def _beat(self) -> None:
        self._timer = None
        if not self._streams:
            return
        now = self._loop.time()
        if now - self._due > self._heartbeat.every:
            self._heard = now  # it was this process that slept: what came meanwhile is not read yet
        silent = now - self._heard
        if silent >= self._heartbeat.dead and not self._held:
            self.die(f"no byte came for {silent:.0f} s")
            return
        if not self._pinged and not self.ends[0].paused:
            self._pinged = True
            self.write(0, self.mux.send_ping(secrets.token_bytes(8)))
        self._arm()

    def _arm(self) -> None:
        self._due = self._loop.time() + self._heartbeat.every
        self._timer = self._loop.call_at(self._due, self._beat)
