"""DNS for one sandbox: an answer for each message, from the policy and the table of synthetic addresses. No query of a guest goes anywhere.

Responder.answer(message) -> bytes | None        pure, but for budgets and records
serve_udp, serve_tcp                             the same over sockets that are the sandbox's own
"""

from __future__ import annotations

import asyncio
import socket
from typing import cast

from space.core.policy.names import NameRefused, canon
from space.core.policy.synthetic import NoAddress
from space.core.policy.verdict import Allow, Deny, Verdict
from space.core.wire.dns import Extended, Malformed, Query, Rcode, Stream, Type, parse, reply, truncated
from space.gateway.budgets import Bucket
from space.gateway.records import NameDecided, Recorder
from space.gateway.shared import log
from space.gateway.surroundings import Surroundings
from space.model.errors import Unavailable

TTL = 60
# NULL, PTR, OPT, TKEY to AXFR and the mail ones, ANY: nobody needs these of a name that it may speak to.
_ODD = frozenset({0, 10, 12, 41, *range(249, 256)})


class Responder:
    """The answers of one sandbox. A query above its rate is not answered: a resolver asks again, and a flood costs no replies."""

    def __init__(self, surroundings: Surroundings, recorder: Recorder) -> None:
        limits = surroundings.limits
        self._around = surroundings
        self._recorder = recorder
        self._queries = Bucket(limits.dns_rate, limits.dns_burst)
        self._distinct = Bucket(limits.dns_names_rate, limits.dns_names_burst)
        self._known: set[str] = set()

    def answer(self, message: bytes, *, udp: bool = True) -> bytes | None:
        """What to send back, or None for silence."""
        now = self._around.clock()
        if not self._queries.take(now):
            self._deny("", 0, "dns_rate", now)
            return None
        query = parse(message)
        if isinstance(query, Malformed):
            self._deny("", 0, "dns_malformed", now)
            return query.answer
        made = self._of(query, now)
        return truncated(query) if udp and len(made) > query.udp_limit else made

    def _of(self, query: Query, now: float) -> bytes:
        try:
            name = canon(query.name or "")
        except NameRefused:
            return self._refused(query, "", "name_invalid", now)
        verdict = self._around.ruling().stack.name(name)
        if isinstance(verdict, Deny):
            return self._refused(query, name, verdict.reason, now, verdict.rule)
        if query.qtype in _ODD:
            return self._refused(query, name, "dns_type", now)
        if query.qtype != Type.A:
            self._note(query, name, verdict)
            return reply(query, Rcode.NOERROR)
        if name not in self._known and not self._distinct.take(now):
            return self._refused(query, name, "dns_names", now)
        try:
            address = self._around.names.address(name, now)
        except NoAddress:
            return self._refused(query, name, "dns_addresses", now)
        if len(self._known) >= 8192:  # a name that is forgotten here costs a token again, and nothing else
            self._known.clear()
        self._known.add(name)
        self._note(query, name, verdict, str(address))
        return reply(query, Rcode.NOERROR, (address,), ttl=TTL)

    def _note(self, query: Query, name: str, verdict: Verdict, address: str = "") -> None:
        rule = verdict.rule.name if isinstance(verdict, Allow) and verdict.rule is not None else ""
        recorded = isinstance(verdict, Allow) and verdict.recorded
        record = NameDecided(sandbox=self._around.sandbox, name=name, qtype=query.qtype, rule=rule, address=address, recorded=recorded)
        self._recorder.note(record)

    def _refused(self, query: Query, name: str, reason: str, now: float, rule: str | None = None) -> bytes:
        self._deny(name, query.qtype, reason, now, rule)
        return reply(query, Rcode.REFUSED, error=Extended.BLOCKED)

    def _deny(self, name: str, qtype: int, reason: str, now: float, rule: str | None = None) -> None:
        record = NameDecided(sandbox=self._around.sandbox, name=name, qtype=qtype, reason=reason, rule=rule or "")
        self._recorder.denied(record, now)


class _Udp(asyncio.DatagramProtocol):
    def __init__(self, responder: Responder) -> None:
        self._responder = responder
        self._transport: asyncio.DatagramTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.DatagramTransport", transport)

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        try:
            answer = self._responder.answer(data)
        except Unavailable:  # it cannot be recorded; whose connections that ends has said why
            return
        except Exception:  # noqa: BLE001 - no answer is a safe answer
            log.exception("a DNS query could not be answered")
            return
        if answer is not None and self._transport is not None:
            self._transport.sendto(answer, addr)


class _Tcp(asyncio.Protocol):
    def __init__(self, server: TcpServer) -> None:
        self._server = server
        self._stream = Stream()
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self.task: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._timer = asyncio.get_running_loop().call_later(self._server.idle, self.close)

    def data_received(self, data: bytes) -> None:
        assert self._transport is not None
        try:
            for message in self._stream.receive(data):
                answer = self._server.responder.answer(message, udp=False)
                if answer is None:
                    self.close()
                    return
                self._transport.write(Stream.send(answer))
        except (ValueError, Unavailable):
            self.close()
        except Exception:  # noqa: BLE001
            log.exception("a DNS query could not be answered")
            self.close()

    def pause_writing(self) -> None:
        self.close()  # it asks and does not read

    def connection_lost(self, _error: Exception | None) -> None:
        self._server.leave(self)
        if self._timer is not None:
            self._timer.cancel()

    def close(self) -> None:
        """A connection has `idle` seconds in all: more is nobody's need."""
        if self._transport is not None:
            self._transport.abort()


class TcpServer:
    """The TCP half. A few connections at a time, each for a short while.

    It accepts by itself: a connection is then either still in the socket's backlog, or counted here, and at no moment neither.
    """

    def __init__(self, responder: Responder, most: int, idle: float) -> None:
        self.responder = responder
        self.idle = idle
        self._most = most
        self._open: set[_Tcp] = set()
        self._sock: socket.socket | None = None

    def __len__(self) -> int:
        return len(self._open)

    def start(self, sock: socket.socket) -> None:
        """Accept from a listening socket, which is the server's from here on."""
        sock.setblocking(False)
        self._sock = sock
        asyncio.get_running_loop().add_reader(sock, self._accept)

    def _accept(self) -> None:
        assert self._sock is not None
        try:
            sock, _ = self._sock.accept()
        except OSError:
            return
        loop = asyncio.get_running_loop()
        one = _Tcp(self)
        if not self.join(one):
            sock.close()
            return
        task = loop.create_task(self._serve(one, sock))
        one.task = task

    async def _serve(self, one: _Tcp, sock: socket.socket) -> None:
        sock.setblocking(False)
        try:
            await asyncio.get_running_loop().connect_accepted_socket(lambda: one, sock)
        except OSError:
            self.leave(one)
            sock.close()

    def join(self, one: _Tcp) -> bool:
        """Whether there is room for it."""
        if len(self._open) >= self._most:
            return False
        self._open.add(one)
        return True

    def leave(self, one: _Tcp) -> None:
        """It is closed."""
        self._open.discard(one)

    def stop(self) -> None:
        """Accept no more; what waits in the backlog waits on. Idempotent."""
        if self._sock is not None:
            asyncio.get_running_loop().remove_reader(self._sock)
            self._sock.close()
            self._sock = None

    async def close(self) -> None:
        """Stop listening, close what is open."""
        self.stop()
        for one in tuple(self._open):
            one.close()


async def serve_udp(responder: Responder, sock: socket.socket) -> asyncio.DatagramTransport:
    """Answer on a bound socket, which is the transport's from here on."""
    transport, _ = await asyncio.get_running_loop().create_datagram_endpoint(lambda: _Udp(responder), sock=sock)
    return transport


async def serve_tcp(responder: Responder, sock: socket.socket, surroundings: Surroundings) -> TcpServer:
    """The same over TCP."""
    server = TcpServer(responder, surroundings.limits.dns_connections, surroundings.limits.dns_idle)
    server.start(sock)
    return server
