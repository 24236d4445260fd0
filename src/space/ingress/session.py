"""One client's connection: its requests, one after another, each to where it is for; the reply back.

    head -> route -> (control resolves) -> request on, reply back -> next head
                  -> refused                                      -> 101: bytes both ways until both ends are done

A connection to a guest belongs to one client's connection and one port; it is used again only when the last reply on it was whole, with
nothing behind it, and briefly. On any doubt it is closed. A client that leaves takes its request with it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, Protocol

from space.core.wire.bodies import BadBody, Body
from space.core.wire.http1 import BadHead, HeadReader, RequestHead, ResponseHead
from space.ingress import heads
from space.ingress.answers import Answer, broken, refused
from space.ingress.heads import Way
from space.ingress.limits import Limits
from space.ingress.routing import BadRoute, Target, ToControl, ToPort, route
from space.model.errors import SpaceError
from space.rpc.ingress_api import Refused, Stands
from space.rpc.wire import Lost, Wire

log = logging.getLogger("space.ingress")
Read = tuple[ResponseHead, bytes]  # a head, and what came behind it
_MOST_DROPPED = 1 << 20


class Upstream:
    """A connection to where requests go. target: the port, or control. stands: what control said of it."""

    def __init__(self, wire: Wire, target: Target, stands: Stands, release: Callable[[], None]) -> None:
        self.wire = wire
        self.target = target
        self.stands = stands
        self.reused = False
        wire.lost = release

    @property
    def usable(self) -> bool:
        """Whether another request may be sent on it: nothing came that nobody asked for."""
        return not self.wire.ended and not self.wire.waiting


class Dialer(Protocol):
    """Who connects."""

    async def dial(self, target: Target, way: Way) -> Upstream | Refused:
        """A connection, or control's word why there is none. SpaceError: control is away."""


class _Answered(Exception):
    """The request ends with an answer of our own."""

    def __init__(self, answer: Answer) -> None:
        super().__init__(answer.message)
        self.answer = answer


class Session:
    """See the module. once: one request only, for the connection is another listener's."""

    def __init__(self, client: Wire, way: Way, domain: str, dialer: Dialer, limits: Limits, *, once: bool = False) -> None:
        self._client = client
        self._way = way
        self._domain = domain
        self._dialer = dialer
        self._limits = limits
        self._once = once
        self._loop = asyncio.get_running_loop()
        self._kept: Upstream | None = None
        self._rest_timer: asyncio.TimerHandle | None = None
        self._idle: _Idle | None = None
        self._task: asyncio.Task[object] | None = None
        self._over = False  # the client has left, or nothing moved for too long
        self.requests = 0

    async def run(self) -> None:
        """Until the connection is over."""
        self._task = asyncio.current_task()
        try:
            while await self._request():
                pass
            await self._linger()
        except Lost:
            self._client.abort()
        except asyncio.CancelledError:
            self._client.abort()
            if not self._over:
                raise
        finally:
            self._client.left = None
            self._stop_idle()
            self._let_go()
            self._client.close()

    # -- one request -------------------------------------------------------------------------------------------------

    async def _request(self) -> bool:
        """Whether another may follow."""
        try:
            head = await self._head()
        except BadHead as bad:
            self._client.write(Answer(bad.status, str(bad)).write(None, close=True))
            return False
        if head is None:
            return False
        self.requests += 1
        try:
            target = route(head, self._domain, relayed=self._once)
        except BadRoute as bad:
            self._client.write(Answer(bad.status, str(bad)).write(head, close=True))
            return False
        self._idle = _Idle(self._loop, self._limits.idle_seconds, self.leave)
        self._client.left = self.leave
        if self._client.ended:
            return False
        try:
            return await self._exchange(head, target)
        finally:
            self._client.left = None
            self._stop_idle()

    async def _head(self) -> RequestHead | None:
        """The next head; None: the client is done, or too slow."""
        reader = HeadReader(RequestHead.parse)
        patience = self._limits.keep_alive_seconds if self.requests and not self._client.waiting else self._limits.head_seconds
        try:
            async with asyncio.timeout(patience) as patient:
                while True:
                    data = await self._client.read()
                    if not data:
                        return None
                    if not reader.begun and self.requests:
                        patient.reschedule(self._loop.time() + self._limits.head_seconds)
                    if (head := reader.receive(data)) is not None:
                        self._client.unread(reader.rest)
                        return head
        except TimeoutError:
            if reader.begun:
                self._client.write(Answer(408, "the head did not come in time").write(None, close=True))
            return None

    async def _exchange(self, head: RequestHead, target: Target) -> bool:
        accept = heads.handshake(head)
        if accept is None and head.upgrade == b"websocket":
            self._client.write(Answer(400, "this is no WebSocket handshake (RFC 6455, 4.1)").write(head, close=True))
            return False
        exchange = _Exchange(self, head, target, accept)
        try:
            return await exchange.run()
        except _Answered as early:
            keep = not self._once and head.keep_alive and exchange.body.ended and not exchange.begun
            if not exchange.begun:
                self._client.write(early.answer.write(head, close=not keep))
            else:
                self._client.abort()  # in the middle of a reply another one would be read as a part of it
            self._let_go()
            return keep

    # -- connections to guests and control -----------------------------------------------------------------------------

    async def upstream(self, target: Target) -> Upstream:
        """The one that is kept, if it is for the same and nothing speaks against it, or a new one. _Answered."""
        kept = self._kept
        self._stop_rest()
        if kept is not None and kept.target == target and kept.usable:
            kept.reused = True
            return kept
        self._let_go()
        try:
            async with asyncio.timeout(self._limits.resolve_seconds):
                found = await self._dialer.dial(target, self._way)
        except TimeoutError:
            raise _Answered(broken(_port(target), "the sandbox did not get ready in time", 504)) from None
        except SpaceError as error:
            raise _Answered(broken(_port(target), error.message, 503)) from None
        if isinstance(found, Refused):
            assert isinstance(target, ToPort)
            raise _Answered(refused(target, found))
        self._kept = found
        return found

    def keep(self, upstream: Upstream) -> None:
        """It may be used again, for a moment."""
        if upstream is self._kept:
            self._rest_timer = self._loop.call_later(self._limits.guest_idle_seconds, self._let_go)

    def _let_go(self) -> None:
        self._stop_rest()
        kept, self._kept = self._kept, None
        if kept is not None:
            kept.wire.abort()

    drop = _let_go

    def _stop_rest(self) -> None:
        if self._rest_timer is not None:
            self._rest_timer.cancel()
            self._rest_timer = None

    # -- the end -------------------------------------------------------------------------------------------------------

    def moved(self) -> None:
        """Bytes have gone one way or the other."""
        if self._idle is not None:
            self._idle.moved()

    def _stop_idle(self) -> None:
        if self._idle is not None:
            self._idle.stop()
            self._idle = None

    def leave(self) -> None:
        """The client has left, or nothing moves: everything ends."""
        self._over = True
        if self._task is not None:
            self._task.cancel()

    async def _linger(self) -> None:
        """Let the client read what was written: closing on what it still sends would take that back."""
        client = self._client
        if client.gone or client.ended:
            return
        client.end()
        dropped = 0
        with suppress(TimeoutError, Lost):
            async with asyncio.timeout(self._limits.linger_seconds):
                while dropped < _MOST_DROPPED and (data := await client.read()):
                    dropped += len(data)

    @property
    def client(self) -> Wire:
        return self._client

    @property
    def limits(self) -> Limits:
        return self._limits

    @property
    def way(self) -> Way:
        return self._way

    @property
    def once(self) -> bool:
        return self._once


class _Exchange:
    """One request and its reply. begun: the client has some of the reply."""

    def __init__(self, session: Session, head: RequestHead, target: Target, accept: bytes | None) -> None:
        self._session = session
        self._client = session.client
        self._head = head
        self._target = target
        self._accept = accept
        self.body = Body(head.framing)
        self.begun = False

    async def run(self) -> bool:
        """Whether another request may follow. _Answered, Lost."""
        while True:
            upstream = await self._session.upstream(self._target)
            try:
                return await self._over(upstream)
            except _Stale:
                self._session.drop()

    async def _over(self, upstream: Upstream) -> bool:
        upstream.wire.write(self._request(upstream))
        if self._head.expects_continue and not self.body.ended:
            self._client.write(heads.CONTINUE)
        sending = None if self.body.ended else asyncio.ensure_future(self._send_body(upstream.wire))
        try:
            reply, rest = await self._reply_head(upstream, sending)
            if reply.status == 101:
                return await self._switch(upstream, reply, rest)
            return await self._reply(upstream, reply, rest)
        finally:
            if sending is not None:
                sending.cancel()
                await asyncio.gather(sending, return_exceptions=True)

    def _request(self, upstream: Upstream) -> bytes:
        websocket = self._accept is not None
        match self._target:
            case ToPort():
                mask = upstream.stands.host.replace("${PORT}", str(self._target.port))
                return heads.to_guest(self._head, self._target, self._session.way, mask, websocket=websocket)
            case ToControl():
                named = self._target.sandbox if self._target.by_host else ""
                return heads.to_control(self._head, self._session.way, named, envd=self._target.envd, websocket=websocket)

    # -- the body ------------------------------------------------------------------------------------------------------

    async def _send_body(self, wire: Wire) -> None:
        """All of it. BadBody: the client broke its framing, or left in the middle."""
        try:
            while not self.body.ended:
                data = await self._client.read()
                if not data:
                    raise BadBody("cut_off", "the request ended in the middle of its body")
                self._session.moved()
                pieces = self.body.receive(data)
                wire.write(heads.framed(pieces, self._head.framing, ended=self.body.ended))
                await wire.drain()
        except BadBody:
            if self.begun:  # nobody can be told any more
                wire.abort()
            raise
        self._client.unread(self.body.rest)
        self.body.rest = b""
        if self._client.ended and not self._client.waiting:
            self._session.leave()

    # -- the reply -----------------------------------------------------------------------------------------------------

    async def _reply_head(self, upstream: Upstream, sending: asyncio.Future[None] | None) -> tuple[ResponseHead, bytes]:
        """The head that counts, and what follows it. _Answered, _Stale."""
        reader = HeadReader(ResponseHead.parse_for(self._head.method))
        reading = self._read_head(upstream.wire, reader)
        try:
            return await (reading if sending is None else _unless_bad(reading, sending))
        except Lost:
            if self._repeatable(upstream, reader):
                raise _Stale from None
            raise _Answered(broken(_port(self._target), f"{self._who} ended the connection without an answer")) from None
        except BadBody as bad:
            raise _Answered(Answer(bad.status, str(bad))) from None
        except BadHead as bad:
            raise _Answered(broken(_port(self._target), f"{self._who} did not answer in HTTP: {bad}")) from None

    @property
    def _who(self) -> str:
        return "the server in the sandbox" if isinstance(self._target, ToPort) else "the server"

    async def _read_head(self, wire: Wire, reader: HeadReader[ResponseHead]) -> tuple[ResponseHead, bytes]:
        interims = 0
        data = await wire.read()
        while True:
            if not data:
                raise Lost
            self._session.moved()
            reply = reader.receive(data)
            if reply is None:
                data = await wire.read()
                continue
            if not reply.interim or reply.status == 101:
                return reply, reader.rest
            interims += 1
            if interims > self._session.limits.interims:
                raise BadHead("interim", "interim replies without end", 502)
            data = reader.rest or await wire.read()

    def _repeatable(self, upstream: Upstream, reader: HeadReader[ResponseHead]) -> bool:
        """Whether a kept connection that closed under the request is reason enough to send it again (RFC 9112, 9.3.1)."""
        plain = self._head.method in (b"GET", b"HEAD", b"OPTIONS") and self._head.framing.kind == "none"
        return upstream.reused and plain and not reader.begun

    async def _reply(self, upstream: Upstream, reply: ResponseHead, rest: bytes) -> bool:
        keep = not self._session.once and self._head.keep_alive and self.body.ended
        body, client, wire = Body(reply.framing, extensions=True), self._client, upstream.wire
        framing = heads.reply_framing(reply)
        out = heads.to_client(reply, bare=self._head.method == b"HEAD", close=not keep)
        self.begun = True
        data = rest
        while True:
            try:
                pieces = body.receive(data) if data else []
            except BadBody:
                raise _Answered(broken(_port(self._target), "a body that breaks its framing")) from None
            out += heads.framed(pieces, framing, ended=body.ended)
            if out:
                client.write(out)
                await client.drain()
                out = b""
            if body.ended:
                break
            data = await self._more(wire, body)
            self._session.moved()
        if reply.keep_alive and keep and not body.rest and reply.framing.kind != "close":
            self._session.keep(upstream)
        else:
            self._session.drop()
        return keep

    async def _more(self, wire: Wire, body: Body) -> bytes:
        """More of a reply's body; b"" when it has ended with its connection. _Answered: it was cut off."""
        try:
            data = await wire.read()
            if not data:
                body.eof()
        except (Lost, BadBody):
            raise _Answered(broken(_port(self._target), "the reply was cut off")) from None
        return data

    async def _switch(self, upstream: Upstream, reply: ResponseHead, rest: bytes) -> bool:
        """Bytes both ways, until both sides are done. Neither connection is used for anything after it."""
        told = heads.switched(reply, self._accept)
        if told is None:
            raise _Answered(broken(_port(self._target), f"{self._who} switched to what was not asked for"))
        self.begun = True
        self._client.left = None
        self._client.write(told + rest)
        ends = ((self._client, upstream.wire), (upstream.wire, self._client))
        pumps = [asyncio.ensure_future(self._pump(source, sink)) for source, sink in ends]
        try:
            await asyncio.gather(*pumps)
        finally:
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)
        return False

    async def _pump(self, source: Wire, sink: Wire) -> None:
        await sink.drain()
        while data := await source.read():
            self._session.moved()
            sink.write(data)
            await sink.drain()
        sink.end()


async def _unless_bad(reading: Coroutine[None, None, Read], sending: asyncio.Future[None]) -> Read:
    """What is read, unless the body that is sent meanwhile turns out to be none: BadBody. A server that has heard enough may have closed
    its side, and still answer.
    """
    task = asyncio.ensure_future(reading)
    try:
        both: set[asyncio.Future[Any]] = {task, sending}
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        if not task.done() and isinstance(bad := sending.exception(), BadBody):
            raise bad
        return await task
    finally:
        task.cancel()


class _Stale(Exception):
    """A kept connection closed before it answered."""


class _Idle:
    """Calls `over` when nothing has moved for so long."""

    def __init__(self, loop: asyncio.AbstractEventLoop, seconds: float, over: Callable[[], None]) -> None:
        self._loop = loop
        self._seconds = seconds
        self._over = over
        self._last = loop.time()
        self._timer = loop.call_later(seconds, self._look)

    def moved(self) -> None:
        self._last = self._loop.time()

    def stop(self) -> None:
        self._timer.cancel()

    def _look(self) -> None:
        due = self._last + self._seconds
        if self._loop.time() >= due:
            self._over()
        else:
            self._timer = self._loop.call_at(due, self._look)


def _port(target: Target) -> ToPort | None:
    return target if isinstance(target, ToPort) else None
