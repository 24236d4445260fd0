"""What a worker is given: the policy of now, names, dialler, signer, record keeper, clock, limits. Nothing here does anything.

In production these are other processes (the worker itself can open no socket and holds no authority's key); in a test they are
functions. Each await is a place where the connection may end.
"""

from __future__ import annotations

import socket
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from ipaddress import IPv4Address
from typing import Protocol

from space.core.policy.synthetic import SyntheticAddresses
from space.core.policy.verdict import Asked, Stack
from space.core.wire.workertalk import Alarming
from space.gateway.budgets import Spending
from space.gateway.lending import Lender
from space.gateway.loans import NONE, Grants
from space.gateway.records import Record


@dataclass(frozen=True, slots=True)
class Ruling:
    """The policy that holds now. generation: another number, another policy."""

    generation: int
    stack: Stack


@dataclass(frozen=True, slots=True)
class Dialled:
    """A connected socket, not blocking, and the address that was checked and dialled. The receiver closes it."""

    sock: socket.socket
    address: str


@dataclass(frozen=True, slots=True)
class DialRefused:
    """No socket. denied: by rule (the address may not be dialled), rather than for want of success."""

    reason: str
    denied: bool = False


@dataclass(frozen=True, slots=True)
class Leaf:
    """A chain that ends before the root, leaf first, and the leaf's key, both PEM."""

    chain: bytes
    key: bytes = field(repr=False)


class Dial(Protocol):
    """The dialler: resolves, checks every address, connects to one. A literal address is dialled as it is."""

    def __call__(self, target: str | IPv4Address, port: int) -> Awaitable[Dialled | DialRefused]: ...


@dataclass(frozen=True, slots=True)
class Limits:
    """Of one sandbox. Seconds, bytes, counts.

    sweep: how often deadlines and the policy's generation are looked at: one timer for all connections, where a timer for each request
    would cost more than the request. handshake: from accept to the end of TLS. head: from the first byte of a head. idle: without a byte
    either way. age: of a connection,
    whatever it does. linger: for the guest to take a last answer. body_rate: bytes a second of a guest's body, after body_grace.
    protocol_seconds: how long it is believed that an upstream speaks HTTP/2 or does not. sessions: of upstreams, to be resumed for
    session_seconds after the handshake that they began with.
    """

    connections: int = 512
    handshakes: int = 64
    upstreams: int = 512
    sweep: float = 0.5
    handshake: float = 10.0
    head: float = 15.0
    idle: float = 300.0
    age: float = 86_400.0
    dial: float = 30.0
    ask: float = 600.0
    linger: float = 3.0
    body_rate: int = 64
    body_grace: float = 30.0
    frame: int = 16 * 1024 * 1024
    contexts: int = 256
    leaf_seconds: float = 3600.0
    protocol_seconds: float = 600.0
    sessions: int = 16
    session_seconds: float = 600.0
    dns_rate: float = 200.0
    dns_burst: int = 400
    dns_names_rate: float = 10.0
    dns_names_burst: int = 500
    dns_connections: int = 8
    dns_idle: float = 10.0
    denials_rate: float = 10.0
    denials_burst: int = 50


@dataclass(frozen=True, slots=True)
class Surroundings:
    """All that one worker stands on.

    clock: seconds that only go forward. bundle: the text of the authorities that a rule names for its upstream (KeyError: none of that
    name), or for None the machine's own, where None means OpenSSL's. ask: what a person says; without one nobody agrees to anything.
    grants: what the sandbox has now. lender: without one nothing is lent. alarm: by kind, grant and host.
    """

    sandbox: str
    ruling: Callable[[], Ruling]
    names: SyntheticAddresses
    dial: Dial
    leaf: Callable[[str], Awaitable[Leaf]]
    record: Callable[[Record], None]
    clock: Callable[[], float]
    bundle: Callable[[str | None], str | None] = lambda _: None
    ask: Callable[[Asked], Awaitable[bool]] | None = None
    grants: Callable[[], Grants] = lambda: NONE
    lender: Lender | None = None
    alarm: Callable[[Alarming, str, str], None] = lambda _kind, _grant, _host: None
    spending: Spending = field(default_factory=Spending)
    limits: Limits = field(default_factory=Limits)
