"""One DNS question to one resolver: by UDP from a socket and port of its own, by TCP when that is cut off or somebody forges.

The messages are dnspython's, the sockets ours: a socket is connected, so the kernel drops what comes from elsewhere; a datagram with
another id is thrown away before anything parses it; a few of those, and the question is asked again by TCP, where guessing is hopeless.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from dataclasses import dataclass

import dns.flags
import dns.message
import dns.name
import dns.rdatatype

from space.core.policy.addresses import Address
from space.dialer.answers import Unusable

_UDP = 1232  # what we say that we take: no fragments (RFC 9715)
_HEADER = 12
_TC = 0x02


@dataclass(frozen=True, slots=True)
class Server:
    """A resolver."""

    address: Address
    port: int = 53


@dataclass(frozen=True, slots=True)
class Patience:
    """Of one exchange. seconds: for UDP, and again for TCP. strays: datagrams that are no answer. message: bytes by TCP."""

    seconds: float = 2.0
    strays: int = 8
    message: int = 16_384


class _ByTcp(Exception):
    """Ask again, by TCP."""


async def ask(server: Server, name: dns.name.Name, kind: dns.rdatatype.RdataType, patience: Patience) -> dns.message.Message:
    """The response. Unusable, TimeoutError, OSError."""
    query = dns.message.make_query(name, kind, use_edns=0, payload=_UDP)  # id and, by the kernel, port: random
    try:
        async with asyncio.timeout(patience.seconds):
            return await _by_udp(server, query, patience.strays)
    except _ByTcp:
        async with asyncio.timeout(patience.seconds):
            return await _by_tcp(server, query, patience.message)


def parsed(data: bytes, query: dns.message.Message) -> dns.message.Message | None:
    """`data` as the response to `query`, or None when it is not that."""
    try:
        message = dns.message.from_wire(data, ignore_trailing=False)
        return message if query.is_response(message) else None
    except Exception:  # noqa: BLE001 (bytes of a stranger in a lenient parser: whatever it raises, they are no response)
        return None


class _Datagrams(asyncio.DatagramProtocol):
    def __init__(self, query: dns.message.Message, answer: asyncio.Future[dns.message.Message], strays: int) -> None:
        self._query, self._answer, self._left = query, answer, strays
        self._id = struct.pack("!H", query.id)

    def datagram_received(self, data: bytes, _: object) -> None:
        if self._answer.done():
            return
        if len(data) >= _HEADER and data[:2] == self._id and len(data) <= _UDP:
            if data[2] & _TC:
                self._answer.set_exception(_ByTcp())
                return
            message = parsed(data, self._query)
            if message is not None:
                self._answer.set_result(message)
                return
        self._left -= 1
        if self._left <= 0:
            self._answer.set_exception(_ByTcp())

    def error_received(self, error: Exception) -> None:
        if not self._answer.done():
            self._answer.set_exception(error)


async def _by_udp(server: Server, query: dns.message.Message, strays: int) -> dns.message.Message:
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[dns.message.Message] = loop.create_future()
    sock = _socket(server, socket.SOCK_DGRAM)
    try:
        sock.connect((str(server.address), server.port))
        transport, _ = await loop.create_datagram_endpoint(lambda: _Datagrams(query, answer, strays), sock=sock)
    except BaseException:
        sock.close()
        raise
    try:
        transport.sendto(query.to_wire())
        return await answer
    finally:
        transport.close()
        if answer.done() and not answer.cancelled():
            answer.exception()  # taken note of, also when a deadline came first


async def _by_tcp(server: Server, query: dns.message.Message, most: int) -> dns.message.Message:
    loop = asyncio.get_running_loop()
    sock = _socket(server, socket.SOCK_STREAM)
    with sock:
        await loop.sock_connect(sock, (str(server.address), server.port))
        wire = query.to_wire()
        await loop.sock_sendall(sock, struct.pack("!H", len(wire)) + wire)
        (size,) = struct.unpack("!H", await _exactly(sock, 2))
        if not _HEADER <= size <= most:
            raise Unusable(f"a message of {size} bytes")
        message = parsed(await _exactly(sock, size), query)
    if message is None or message.flags & dns.flags.TC:
        raise Unusable("no response to what was asked")
    return message


async def _exactly(sock: socket.socket, size: int) -> bytes:
    loop = asyncio.get_running_loop()
    data = bytearray()
    while len(data) < size:
        more = await loop.sock_recv(sock, size - len(data))
        if not more:
            raise Unusable("the connection ended within the answer")
        data += more
    return bytes(data)


def _socket(server: Server, kind: socket.SocketKind) -> socket.socket:
    sock = socket.socket(socket.AF_INET if server.address.version == 4 else socket.AF_INET6, kind)
    sock.setblocking(False)
    return sock
