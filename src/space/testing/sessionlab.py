"""Both ends of a session over real sockets, for tests: handlers that do what is asked, a linked pair, a guest of raw bytes."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import socket
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import msgspec
import uvloop

from space.core.wire import guest
from space.core.wire.events import GUEST
from space.core.wire.frames import (
    VERSION,
    Encoder,
    Greeting,
    decode_greeting,
    encode_hello_ack,
)  # fmt: skip
from space.model.errors import (
    NotFound,
    SandboxDied,
)  # fmt: skip
from space.rpc.session import Data, Handler, Heartbeat, Served, Session, Stream

DONE = msgspec.msgpack.encode(guest.Done())
CALM = Heartbeat()
LIMIT = 30


def timed(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run the coroutine in loops of both makes, with a deadline that only a hang reaches."""

    @functools.wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        async def main() -> None:
            async with asyncio.timeout(LIMIT):
                await test(*args, **kwargs)

        for factory in (asyncio.new_event_loop, uvloop.new_event_loop):
            with asyncio.Runner(loop_factory=factory) as runner:
                runner.run(main())

    return run


async def until(condition: Callable[[], bool]) -> None:
    """For what tells nobody that it has happened."""
    while not condition():  # noqa: ASYNC110
        await asyncio.sleep(0.005)


class Host:
    """What the handlers under test did, and what they wait for."""

    def __init__(self) -> None:
        self.cancelled: asyncio.Queue[str] = asyncio.Queue()
        self.begun: asyncio.Queue[str] = asyncio.Queue()

    async def handle(self, stream: Stream, verb: str, request: bytes) -> None:
        self.begun.put_nowait(verb)
        try:
            await getattr(self, verb.replace("-", "_"))(stream, request)
        except asyncio.CancelledError:
            self.cancelled.put_nowait(verb)
            raise

    async def noop(self, stream: Stream, request: bytes) -> None:
        await stream.send_message(DONE)

    async def echo(self, stream: Stream, request: bytes) -> None:
        async for event in stream:
            await stream.send(event.payload, event.lane if isinstance(event, Data) else 0)

    async def flood(self, stream: Stream, request: bytes) -> None:
        await stream.send(bytes(int(request)))

    async def hang(self, stream: Stream, request: bytes) -> None:
        await asyncio.Event().wait()

    async def fail(self, stream: Stream, request: bytes) -> None:
        await stream.send(b"first")
        raise {"not_found": NotFound("no such program"), "died": SandboxDied("ha"), "bug": ValueError("secret words")}[request.decode()]

    async def nothing(self, stream: Stream, request: bytes) -> None:
        pass

    async def two(self, stream: Stream, request: bytes) -> None:
        await stream.send_message(DONE)
        await stream.send_message(DONE)

    async def once(self, stream: Stream, request: bytes) -> None:
        await stream.send_message(DONE, last=True)

    async def deaf(self, stream: Stream, request: bytes) -> None:
        """Answers without taking what it is sent."""
        await stream.send_message(DONE)


@contextlib.asynccontextmanager
async def linked(handler: Handler, heartbeat: Heartbeat = CALM) -> AsyncIterator[tuple[Session, Served]]:
    """A session and who serves it; at the end no task is left."""
    (control, theirs), (bulk, their_bulk) = socket.socketpair(), socket.socketpair()
    served = Served(GUEST, handler)
    await served.attach((theirs, their_bulk))
    session = await Session.open_guest(control, bulk, 7, reconnect=False, heartbeat=heartbeat)
    try:
        yield session, served
    finally:
        await session.aclose()
        await served.aclose()
        assert [task for task in asyncio.all_tasks() if task is not asyncio.current_task()] == []


async def collected(stream: Stream) -> bytes:
    """All bytes up to the end."""
    return b"".join([event.payload async for event in stream])


class Hostile:
    """A guest of raw bytes."""

    def __init__(self) -> None:
        (self.control, self.theirs), (self.bulk, self.their_bulk) = socket.socketpair(), socket.socketpair()
        self.encoder = Encoder()
        for sock in (self.theirs, self.their_bulk):
            sock.setblocking(False)

    async def session(self, heartbeat: Heartbeat = CALM) -> Session:
        loop = asyncio.get_running_loop()
        opening = asyncio.create_task(Session.open_guest(self.control, self.bulk, 7, reconnect=False, heartbeat=heartbeat))
        for number, sock in enumerate((self.theirs, self.their_bulk)):
            hello = b""
            while len(hello) < 68:
                hello += await loop.sock_recv(sock, 68 - len(hello))
            said = decode_greeting(hello[16:64])
            await loop.sock_sendall(sock, b"stale" + encode_hello_ack(Greeting(said.nonce, 7, VERSION, number)))
        return await opening

    async def says(self, kind: int, stream: int, payload: bytes = b"") -> None:
        await asyncio.get_running_loop().sock_sendall(self.theirs, self.encoder.frame(kind, stream, payload))

    def close(self) -> None:
        self.theirs.close()
        self.their_bulk.close()
