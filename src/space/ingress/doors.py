"""Who comes in: clients by the TCP listener (with TLS where there is a certificate), and by control's hand through a UNIX socket.

On a listener with TLS only clients of this very machine may speak plain HTTP: their first byte says which it is.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
import struct
from collections import Counter
from collections.abc import Callable, Collection, Coroutine
from contextlib import suppress
from ipaddress import IPv6Address, ip_address

from space.ingress.heads import Way
from space.ingress.limits import Limits
from space.ingress.session import Dialer, Session
from space.rpc import ingress_api as api
from space.rpc.wire import Lost, Wire

log = logging.getLogger("space.ingress")
_HANDSHAKE = b"\x16"
_PEER = struct.Struct("=iII")
_AT_ONCE = 64
_FULL_SECONDS = 0.05
_SHUTDOWN_SECONDS = 2.0


class Doors:
    """tls: None speaks plain HTTP only. relays: uids that may hand clients over."""

    def __init__(
        self, listener: socket.socket, relay: socket.socket, *, domain: str, dialer: Dialer, tls: ssl.SSLContext | None, limits: Limits,
        relays: Collection[int],
    ) -> None:  # fmt: skip
        self._listeners = {listener: self._client, relay: self._relayed}
        self._domain = domain
        self._dialer = dialer
        self._tls = tls
        self._limits = limits
        self._relays = relays
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._of_client: Counter[str] = Counter()

    def open(self) -> None:
        """Begin to accept."""
        for listener in self._listeners:
            listener.setblocking(False)
            self._loop.add_reader(listener, self._accept, listener)

    async def aclose(self) -> None:
        """Accept nobody any more, and hang up."""
        for listener in self._listeners:
            self._loop.remove_reader(listener)
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    @property
    def sessions(self) -> int:
        """How many are open."""
        return len(self._tasks)

    def _accept(self, listener: socket.socket) -> None:
        for _ in range(_AT_ONCE):
            if len(self._tasks) >= self._limits.connections:
                self._rest(listener)
                return
            try:
                sock, address = listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:  # no descriptors: those who wait may wait a little longer
                log.warning("cannot accept: %s", error.strerror or error)
                self._rest(listener)
                return
            sock.setblocking(False)
            self._listeners[listener](sock, address)

    def _rest(self, listener: socket.socket) -> None:
        """Accept nobody for a moment: who comes waits in the backlog."""
        self._loop.remove_reader(listener)
        self._loop.call_later(_FULL_SECONDS, self._loop.add_reader, listener, self._accept, listener)

    # -- clients -------------------------------------------------------------------------------------------------------

    def _client(self, sock: socket.socket, address: tuple[str, int]) -> None:
        peer = address[0].partition("%")[0]
        who, local = _place(peer)
        if not local and self._of_client[who] >= self._limits.connections_per_client:
            sock.close()
            return
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in ((socket.TCP_KEEPIDLE, 30), (socket.TCP_KEEPINTVL, 10), (socket.TCP_KEEPCNT, 3)):
            sock.setsockopt(socket.IPPROTO_TCP, option, value)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._of_client[who] += 1
        self._spawn(self._serve(sock, peer, local=local), lambda: self._done(who))

    def _done(self, who: str) -> None:
        self._of_client[who] -= 1
        if not self._of_client[who]:
            del self._of_client[who]

    async def _serve(self, sock: socket.socket, peer: str, *, local: bool) -> None:
        try:
            secure = self._tls is not None and not (local and await self._speaks_plain(sock))
            client = Wire()  # uvloop's answer would be the one below, which speaks TLS
            await self._loop.connect_accepted_socket(
                lambda: client,
                sock,
                ssl=self._tls if secure else None,
                ssl_handshake_timeout=self._limits.tls_seconds if secure else None,
                ssl_shutdown_timeout=_SHUTDOWN_SECONDS if secure else None,
            )
        except (OSError, TimeoutError, ssl.SSLError) as error:  # what is no TLS, or no handshake in time
            log.debug("no connection of %s: %r", peer, error)
            sock.close()
            return
        except BaseException:
            sock.close()
            raise
        await Session(client, Way(peer, secure), self._domain, self._dialer, self._limits).run()

    async def _speaks_plain(self, sock: socket.socket) -> bool:
        """Whether the first byte is of no TLS. TimeoutError: there is none."""
        async with asyncio.timeout(self._limits.head_seconds):
            while True:
                with suppress(BlockingIOError):
                    return sock.recv(1, socket.MSG_PEEK) not in (_HANDSHAKE, b"")
                readable = self._loop.create_future()
                self._loop.add_reader(sock, _set, readable)
                try:
                    await readable
                finally:
                    self._loop.remove_reader(sock)

    # -- control's hand ------------------------------------------------------------------------------------------------

    def _relayed(self, sock: socket.socket, _address: object) -> None:
        _, uid, _ = _PEER.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))
        if uid not in self._relays:
            log.warning("refused a connection of uid %d", uid)
            sock.close()
            return
        self._spawn(self._take(sock), lambda: None)

    async def _take(self, sock: socket.socket) -> None:
        _, client = await self._loop.connect_accepted_socket(Wire, sock)
        try:
            async with asyncio.timeout(self._limits.head_seconds):
                said = await _word(client)
        except (TimeoutError, Lost, api.BadWord):
            client.abort()
            return
        await Session(client, Way(said.client or "unknown", said.secure), self._domain, self._dialer, self._limits, once=True).run()

    def _spawn(self, work: Coroutine[None, None, None], done: Callable[[], None]) -> None:
        task = self._loop.create_task(work)

        def over(ended: asyncio.Task[None]) -> None:
            self._tasks.discard(ended)
            done()
            if not ended.cancelled() and (error := ended.exception()) is not None:
                log.error("a connection's task failed", exc_info=error)

        self._tasks.add(task)
        task.add_done_callback(over)


async def _word(wire: Wire) -> api.Relayed:
    reader = api.WordReader()
    while data := await wire.read():
        said = reader.receive(data, api.TO_INGRESS)
        if said is not None:
            wire.unread(reader.rest)
            return said
    raise Lost


def _place(peer: str) -> tuple[str, bool]:
    """Under what a client is counted (an IPv6 network is one client), and whether it is this machine."""
    try:
        address = ip_address(peer)
    except ValueError:
        return peer, False
    if isinstance(address, IPv6Address):
        if address.ipv4_mapped is not None:
            return str(address.ipv4_mapped), address.ipv4_mapped.is_loopback
        if not address.is_loopback:
            return str(int(address) >> 64), False
    return str(address), address.is_loopback


def _set(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
