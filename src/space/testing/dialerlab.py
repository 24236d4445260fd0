"""A dialer in this process: a real DNS server, real sockets, and a keeper of records that the test reads."""

from __future__ import annotations

import socket
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from ipaddress import ip_network

from space.audit.records import Kept, decode
from space.config.egress import Endpoint
from space.core.policy.document import compose, digest
from space.dialer.desk import Desk, Limits
from space.dialer.exchange import Patience
from space.dialer.resolve import Resolver, Tuning
from space.dialer.server import compose as compose_dialer
from space.dialer.surroundings import Own
from space.rpc.dialer_client import DialerControl, DialSocket
from space.rpc.packets import pair
from space.testing.dnslab import Zone, serve

ONE, OTHER = "sb-" + "a" * 20, "sb-" + "b" * 20
NAME = "a.example.com"
_LIMITS = Limits()


def document(*rules: str) -> bytes:
    """A policy with rules for opaque streams, each `name:port`."""
    return compose({"sandbox": {"version": 1, "rule": [{"tcp": rule} for rule in rules]}})


@dataclass
class Place:
    """control: the node's connection. audit: the keeper's end. port: of a listener at 127.9.0.1, where NAME leads."""

    desk: Desk
    control: DialerControl
    zone: Zone
    port: int
    audit: socket.socket

    async def policy(self, *rules: str) -> str:
        """A policy that is put: its digest."""
        data = document(*(rules or (f"{NAME}:{self.port}",)))
        await self.control.put_policy(digest(data), data)
        return digest(data)

    async def bound(self, sandbox: str = ONE, generation: int = 1, number: int = 1, policy: str | None = None) -> DialSocket:
        """A worker that is bound."""
        return DialSocket(await self.raw(sandbox, generation, number, policy))

    async def raw(self, sandbox: str = ONE, generation: int = 1, number: int = 1, policy: str | None = None) -> socket.socket:
        """The same as its socket."""
        theirs, ours = pair()
        name = await self.policy() if policy is None else policy
        await self.control.bind(theirs, sandbox, generation, name, number)
        ours.setblocking(False)
        return ours

    def recorded(self) -> list[Kept]:
        """What the keeper was told since the last call."""
        found: list[Kept] = []
        while True:
            try:
                found.append(decode(self.audit.recv(65536)).record)
            except BlockingIOError:
                return found


@asynccontextmanager
async def placed(limits: Limits = _LIMITS, *, audited: bool = True, endpoints: Sequence[Endpoint] = ()) -> AsyncIterator[Place]:
    """One. 127.9.0.0/16 is the operator's range. endpoints: of the minter."""
    zone = Zone()
    await serve(zone)
    zone.address(NAME, "127.9.0.1")
    own = Own()
    resolver = Resolver([zone.server], time.monotonic, Tuning(rounds=1, seconds=3, patience=Patience(seconds=1.0)))
    desk, records = compose_dialer(own, resolver, (ip_network("127.9.0.0/16"),), limits, endpoints)
    theirs, ours = pair()
    desk.connected(theirs)
    control = DialerControl(ours)
    audit, source = pair()
    audit.setblocking(False)
    if audited:
        await control.bind_audit(source)
    with socket.create_server(("127.9.0.1", 0), backlog=512) as listener:
        yield Place(desk, control, zone, listener.getsockname()[1], audit)
        control.close()
        await desk.aclose()
        await records.aclose()
        await resolver.aclose()
        own.close()
