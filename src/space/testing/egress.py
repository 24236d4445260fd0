"""A gateway in one process: a root of its own, names that lead to this machine, records in a list. Real sockets and real TLS.

The synthetic addresses are 127.100.0.0/16, all of which are this machine's on Linux, so that a client connects to the address of a name
and the accepting socket tells which one it was, as it does behind TPROXY.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization

from space.broker.certificates import make_intermediate, make_leaf, make_root, new_key, private_pem
from space.core.policy.loader import load
from space.core.policy.synthetic import SyntheticAddresses
from space.core.policy.verdict import Layer, Stack
from space.gateway.records import Record
from space.gateway.surroundings import Dialled, DialRefused, Leaf, Limits, Ruling, Surroundings
from space.gateway.worker import Worker

NETWORK = IPv4Network("127.100.0.0/16")
SANDBOX = "sb-aaaaaaaaaaaaaaaaaaaa"


def stack_of(*policies: Mapping[str, Any]) -> Stack:
    """Layers from plain data; any name may stand in a rule."""
    return Stack(
        [Layer(load({"version": 1, **one}, name=f"layer{at}", public_suffix=lambda _: False).policy) for at, one in enumerate(policies)]
    )


class Signer:
    """Root, intermediate, leaves: what the signer's process does."""

    def __init__(self) -> None:
        now = datetime.now(UTC)
        self.root = make_root("test", now)
        self._intermediate = make_intermediate(self.root, SANDBOX, 1, now)
        self.minted: list[str] = []

    async def leaf(self, name: str) -> Leaf:
        """A leaf of a canonical name."""
        self.minted.append(name)
        return self.make(name)

    def make(self, name: str) -> Leaf:
        """The same, at once: for upstream servers of a test."""
        key = new_key()
        made = make_leaf(self._intermediate, name, key.public_key(), datetime.now(UTC))
        return Leaf(made.public_bytes(serialization.Encoding.PEM) + self._intermediate.pem, private_pem(key))

    def expired(self, name: str) -> Leaf:
        """A leaf whose time is over."""
        key = new_key()
        leaf = make_leaf(self._intermediate, name, key.public_key(), datetime.now(UTC))
        built = x509.CertificateBuilder(
            leaf.issuer, leaf.subject, key.public_key(), leaf.serial_number,
            datetime.now(UTC) - timedelta(hours=20), datetime.now(UTC) - timedelta(hours=2), list(leaf.extensions),
        )  # fmt: skip
        made = built.sign(self._intermediate.key, hashes.SHA256())
        return Leaf(made.public_bytes(serialization.Encoding.PEM) + self._intermediate.pem, private_pem(key))

    @property
    def pem(self) -> str:
        return self.root.pem.decode()


def server_context(leaf: Leaf, directory: Path) -> ssl.SSLContext:
    """An upstream's context."""
    file = directory / f"{time.monotonic_ns()}.pem"
    file.write_bytes(leaf.chain + leaf.key)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(file)
    file.unlink()
    return context


class LoopbackDialer:
    """The dialler's work for names that a test has given an address on this machine. Everything else is refused."""

    def __init__(self) -> None:
        self.places: dict[tuple[str, int], tuple[str, int]] = {}
        self.dialled: list[tuple[str, int]] = []

    async def __call__(self, target: str | IPv4Address, port: int) -> Dialled | DialRefused:
        """Connect."""
        place = self.places.get((str(target), port))
        self.dialled.append((str(target), port))
        if place is None:
            return DialRefused("address_private", denied=True)
        sock = socket.socket()
        sock.setblocking(False)
        try:
            await asyncio.get_running_loop().sock_connect(sock, place)
        except OSError:
            sock.close()
            return DialRefused("unreachable")
        except BaseException:
            sock.close()
            raise
        return Dialled(sock, f"{place[0]}:{place[1]}")


@dataclass
class Lab:
    """A worker behind listeners. ruling: replace it and the policy is another one."""

    ruling: Ruling
    signer: Signer = field(default_factory=Signer)
    dialer: LoopbackDialer = field(default_factory=LoopbackDialer)
    records: list[Record] = field(default_factory=list)
    limits: Limits = field(default_factory=lambda: Limits(sweep=0.05))
    changes: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.names = SyntheticAddresses(NETWORK)
        self.around = Surroundings(
            sandbox=SANDBOX,
            ruling=lambda: self.ruling,
            names=self.names,
            dial=self.dialer,
            leaf=self.signer.leaf,
            record=self.records.append,
            clock=time.monotonic,
            bundle=lambda _: self.signer.pem,
            limits=self.limits,
        )
        if self.changes:
            self.around = replace(self.around, **self.changes)
        self.worker = Worker(self.around)
        self._tasks: list[asyncio.Task[None]] = []
        self._listeners: list[socket.socket] = []

    def policy(self, *policies: Mapping[str, Any]) -> None:
        """Another policy from now on."""
        self.ruling = Ruling(self.ruling.generation + 1, stack_of(*policies))

    def address(self, name: str) -> str:
        """What DNS would have told the guest."""
        return str(self.names.address(name, time.monotonic()))

    def listen(self, port: int = 0) -> int:
        """A port on which every synthetic address is served."""
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(("0.0.0.0", port))
        sock.listen(512)
        sock.setblocking(False)
        self._listeners.append(sock)
        self._tasks.append(asyncio.get_running_loop().create_task(self._accept(sock)))
        return int(sock.getsockname()[1])

    async def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            sock, _ = await loop.sock_accept(listener)
            await self.worker.accept(sock)

    async def close(self) -> None:
        """Everything."""
        for task in self._tasks:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        for sock in self._listeners:
            sock.close()
        self.worker.close()
        while len(self.worker):  # noqa: ASYNC110 - transports close in the loop's next rounds, a handful
            await asyncio.sleep(0)

    def client_context(self, **changes: Any) -> ssl.SSLContext:
        """What a guest trusts."""
        context = ssl.create_default_context(cadata=self.signer.pem)
        for key, value in changes.items():
            setattr(context, key, value)
        return context
