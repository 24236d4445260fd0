"""What the ingress asks: ports of sandboxes, and HTTP of clients that it passes on. It may be taken by whoever it serves, so nothing it
says is believed but what a client could say itself.

    Resolve -> living? -> visible? -> token? -> room? -> awake? -> connected: Stands, then bytes both ways
    Api     -> an ordinary connection of the API, with the client's address

The way to guests is a session of its own to the node, so that strangers' connections take none of the API's 1,024 streams.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import struct
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from space.control import limits
from space.control.e2b import wake
from space.control.e2b.ids import to_ours
from space.control.e2b.seat import Seat
from space.control.exposed import visible
from space.control.records import Record
from space.control.services import Services
from space.core.wire import files as guest
from space.core.wire.events import Data, Message
from space.core.wire.guest import expect
from space.model.errors import Conflict, Gone, NotFound, ProtocolError, RateLimited, SpaceError
from space.rpc import ingress_api as api
from space.rpc.node_api import Forward
from space.rpc.session import Session
from space.rpc.stream import Stream
from space.rpc.wire import Lost, Wire

log = logging.getLogger("space.control.ingress")
_PEER = struct.Struct("=iII")
Accept = Callable[[asyncio.Transport, api.Api, bytes], None]


class Refusal(Exception):
    """Why there is no connection."""

    def __init__(self, reason: api.Reason, message: str = "") -> None:
        super().__init__(message or reason)
        self.said = api.Refused(reason, message)


class NodeSession:
    """The session that ports go by, made when it is first needed and again when it has ended."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._session: Session | None = None
        self._lock = asyncio.Lock()

    async def open(self, sandbox: str, port: int) -> Stream:
        """A stream to a port of a guest; what it says first is whether it stands. Unavailable, Conflict."""
        async with self._lock:
            if self._session is None or self._session.closed.done():
                async with asyncio.timeout(limits.CALL_SECONDS):
                    self._session = await Session.connect(self._path)
        request = Forward(sandbox, msgspec.msgpack.encode(guest.Connect(port)))
        return await self._session.open("connect", request, bulk=True)

    async def aclose(self) -> None:
        """Hang up."""
        if self._session is not None:
            await self._session.aclose()


class Ports:
    """Control's side of `ports.sock`. uids: who may connect. accept: takes over a connection that is a client's of the API."""

    def __init__(self, listener: socket.socket, uids: Collection[int], services: Services, node: Path, accept: Accept) -> None:
        listener.setblocking(False)
        self._listener = listener
        self._uids = uids
        self._services = services
        self._node = NodeSession(node)
        self._accept_api = accept
        self._open: dict[str, dict[asyncio.Task[None], api.Resolve]] = {}
        self._count = 0
        self._tasks: set[asyncio.Task[None]] = set()

    def open(self) -> None:
        """Begin to accept."""
        asyncio.get_running_loop().add_reader(self._listener, self._accept)
        self._services.e2b.extras.on_put.append(self._changed)

    async def aclose(self) -> None:
        """Accept nobody any more, and hang up."""
        asyncio.get_running_loop().remove_reader(self._listener)
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._node.aclose()

    def _accept(self) -> None:
        try:
            sock, _ = self._listener.accept()
        except OSError:  # nobody there after all, or no descriptors: who waits is found again
            return
        _, uid, _ = _PEER.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))
        if uid not in self._uids or len(self._tasks) >= limits.PORT_CONNECTIONS_WITH_API:
            log.warning("refused a connection of uid %d: %d are open", uid, len(self._tasks))
            sock.close()
            return
        sock.setblocking(False)
        task = asyncio.get_running_loop().create_task(self._serve(sock), name="ingress")
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a connection of the ingress failed", exc_info=error)

    async def _serve(self, sock: socket.socket) -> None:
        _, wire = await asyncio.get_running_loop().connect_accepted_socket(Wire, sock)
        try:
            async with asyncio.timeout(limits.HEAD_SECONDS):
                asked, rest = await _word(wire)
            if isinstance(asked, api.Api):
                self._accept_api(wire.transport, asked, rest + wire.take())
                return
            wire.unread(rest)
            await self._port(wire, asked)
        except Refusal as refusal:
            wire.write(api.word(refusal.said))
            wire.close()
        except (Lost, TimeoutError, api.BadWord) as error:
            log.debug("hung up on the ingress: %r", error)
            wire.abort()
        except BaseException:
            wire.abort()
            raise

    # -- a port --------------------------------------------------------------------------------------------------------

    async def _port(self, wire: Wire, asked: api.Resolve) -> None:
        task = asyncio.current_task()
        assert task is not None
        wire.left = task.cancel  # whoever asked has left while the sandbox wakes
        record = self._admitted(asked)
        extras = self._services.e2b.extras.of(record.id)
        with self._place(record, asked, task), self._services.activity.during(record.id):
            await self._awake(record, made=extras.made)
            try:
                stream = await self._node.open(record.id, asked.port)
            except (SpaceError, TimeoutError) as fault:
                raise Refusal("failed", _words(fault)) from None
            async with stream:
                try:
                    await _connected(stream)
                except NotFound:
                    raise Refusal("closed") from None
                except (SpaceError, TimeoutError) as fault:
                    raise Refusal("failed", _words(fault)) from None
                wire.left = None
                wire.write(api.word(api.Stands(extras.mask_host or "", asked.port in extras.https_ports)))
                await _both(wire, stream)
        wire.close()

    def _admitted(self, asked: api.Resolve) -> Record:
        """The sandbox, if whoever asks may reach that port of it. Refusal."""
        try:
            record = self._services.sandboxes.living(to_ours(asked.sandbox))
        except NotFound:
            record = None
        if record is None or (extras := self._services.e2b.extras.of(record.id)).holds:
            raise Refusal("not_found")
        match visible(extras, asked.port):
            case "hidden":
                raise Refusal("hidden", f"port {asked.port} of this sandbox is not exposed")
            case "private" if not self._services.e2b.tokens.opens_traffic(record.id, asked.token):
                raise Refusal("token", "the traffic access token is missing or wrong: header e2b-traffic-access-token")
            case _:
                return record

    async def _awake(self, record: Record, *, made: bool) -> None:
        if made:
            try:
                if not await wake.ready(self._services, Seat(record.tenant, record.id, 0), wakes=True):
                    raise Refusal("not_found")
            except SpaceError as fault:
                raise Refusal("failed", _words(fault)) from None
            return
        try:
            await self._services.sandboxes.usable(record.tenant, record.id)
        except (NotFound, Gone, Conflict):
            raise Refusal("not_found") from None
        except RateLimited:
            raise Refusal("busy", "too many requests wait for this sandbox to wake") from None
        except SpaceError as fault:
            raise Refusal("failed", _words(fault)) from None

    @contextmanager
    def _place(self, record: Record, asked: api.Resolve, task: asyncio.Task[None]) -> Iterator[None]:
        there = self._open.setdefault(record.id, {})
        if len(there) >= limits.PORT_CONNECTIONS_PER_SANDBOX or self._count >= limits.PORT_CONNECTIONS:
            raise Refusal("busy", "too many connections to ports are open")
        there[task] = asked
        self._count += 1
        try:
            yield
        finally:
            self._count -= 1
            del there[task]
            if not there and self._open.get(record.id) is there:
                del self._open[record.id]

    def _changed(self, sandbox: str) -> None:
        """Who may reach what of it is another matter now: connections that would be refused end."""
        for task, asked in self._open.get(sandbox, {}).items():
            try:
                self._admitted(asked)
            except Refusal:
                task.cancel()


async def _word(wire: Wire) -> tuple[api.Resolve | api.Api, bytes]:
    reader = api.WordReader()
    while data := await wire.read():
        said = reader.receive(data, api.TO_CONTROL)
        if said is not None:
            return said, reader.rest
    raise Lost


async def _connected(stream: Stream) -> None:
    async with asyncio.timeout(limits.PORT_SECONDS):
        event = await anext(aiter(stream), None)
    if not isinstance(event, Message):
        raise ProtocolError("the node ended the connection's stream before it stood")
    expect(guest.Connected, event.payload)


async def _both(wire: Wire, stream: Stream) -> None:
    """Until both directions have ended, or one of them has failed: then both end at once."""
    tasks = [asyncio.ensure_future(_into(wire, stream)), asyncio.ensure_future(_out(wire, stream))]
    try:
        await asyncio.gather(*tasks)
    except (SpaceError, Lost):
        wire.abort()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _into(wire: Wire, stream: Stream) -> None:
    while data := await wire.read():
        await stream.send(data)
    await stream.close()


async def _out(wire: Wire, stream: Stream) -> None:
    async for event in stream:
        if not isinstance(event, Data):
            raise Lost
        wire.write(event.payload)
        await wire.drain()
    wire.end()


def _words(fault: BaseException) -> str:
    """What crosses to a stranger: no cause, no path."""
    return f"the sandbox could not be reached ({fault.code})" if isinstance(fault, SpaceError) else "the sandbox did not answer in time"
