"""A real DNS server on loopback, by UDP and TCP, whose answers the test writes."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from ipaddress import ip_address

import dns.exception
import dns.flags
import dns.message
import dns.rcode
import dns.rdatatype
import dns.rrset

from space.dialer.exchange import Server


@dataclass
class Zone:
    """What it says. records: (name, type) -> lines `name ttl TYPE value`; any other name does not exist. code, silent: of every answer.

    forge: from the query and the right answer (and whether by TCP) to what is sent. asked: every question, `tcp` or `udp` first.
    """

    records: dict[tuple[str, str], list[str]] = field(default_factory=dict)
    code: dns.rcode.Rcode | None = None
    silent: bool = False
    forge: Callable[[dns.message.Message, bytes, bool], list[bytes]] | None = None
    asked: list[tuple[str, str, str]] = field(default_factory=list)
    port: int = 0
    held: list[object] = field(default_factory=list)

    @property
    def server(self) -> Server:
        """Where it listens, once `serve` has returned."""
        return Server(ip_address("127.0.0.1"), self.port)

    def address(self, name: str, *addresses: str, ttl: int = 60) -> None:
        """The name leads there."""
        for kind, colon in (("A", False), ("AAAA", True)):
            self.records[name, kind] = [f"{name}. {ttl} {kind} {one}" for one in addresses if (":" in one) == colon]

    def alias(self, name: str, *chain: str, address: str = "", ttl: int = 60) -> None:
        """The name is another's, and so on, whose last has that address."""
        for kind in ("A", "AAAA"):
            lines = [f"{one}. {ttl} CNAME {other}." for one, other in zip((name, *chain), chain, strict=False)]
            if address and (":" in address) == (kind == "AAAA"):
                lines.append(f"{chain[-1]}. {ttl} {kind} {address}")
            self.records[name, kind] = lines

    def answers(self, wire: bytes, *, tcp: bool) -> list[bytes]:
        """What is sent for a query."""
        try:
            query = dns.message.from_wire(wire)
            question, response = query.question[0], dns.message.make_response(query)
        except (dns.exception.DNSException, IndexError):
            self.asked.append(("tcp" if tcp else "udp", "", "malformed"))
            return []
        name, kind = question.name.to_text(omit_final_dot=True), dns.rdatatype.to_text(question.rdtype)
        self.asked.append(("tcp" if tcp else "udp", name, kind))
        if self.silent:
            return []
        lines = self.records.get((name.lower(), kind))
        if self.code is not None:
            response.set_rcode(self.code)
        elif lines is None:
            response.set_rcode(dns.rcode.NXDOMAIN)
        for line in lines or ():
            owner, ttl, of, value = line.split(" ", 3)
            response.answer.append(dns.rrset.from_text(owner, int(ttl), "IN", of, value))
        whole = response.to_wire(max_size=65535)
        return [whole] if self.forge is None else self.forge(query, whole, tcp)


class _Udp(asyncio.DatagramProtocol):
    def __init__(self, zone: Zone) -> None:
        self._zone = zone

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def datagram_received(self, data: bytes, sender: object) -> None:
        for answer in self._zone.answers(data, tcp=False):
            self._transport.sendto(answer, sender)  # type: ignore[attr-defined]


async def _tcp(zone: Zone, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(asyncio.IncompleteReadError, ConnectionError):
        (size,) = struct.unpack("!H", await reader.readexactly(2))
        for answer in zone.answers(await reader.readexactly(size), tcp=True):
            writer.write(struct.pack("!H", len(answer)) + answer)
        await writer.drain()
    writer.close()


async def serve(zone: Zone) -> None:
    """On a free port of loopback, until the loop ends."""
    tcp = socket.create_server(("127.0.0.1", 0))
    await serve_on(zone, tcp, bound("127.0.0.1", tcp.getsockname()[1]))


def bound(address: str, port: int) -> socket.socket:
    """A socket for datagrams, in the network namespace of the caller."""
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.bind((address, port))
    return sock


async def serve_on(zone: Zone, tcp: socket.socket, udp: socket.socket) -> None:
    """On sockets of one address and port, wherever they were made, until the loop ends."""
    zone.port = tcp.getsockname()[1]
    zone.held.append(await asyncio.start_server(lambda reader, writer: _tcp(zone, reader, writer), sock=tcp))
    udp.setblocking(False)
    await asyncio.get_running_loop().create_datagram_endpoint(lambda: _Udp(zone), sock=udp)


def run(main: Awaitable[None]) -> None:
    """A test's own loop, for 30 seconds at most."""

    async def bounded() -> None:
        async with asyncio.timeout(30):
            await main

    asyncio.run(bounded())
