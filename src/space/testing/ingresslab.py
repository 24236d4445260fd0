"""An ingress in this process: a client's end, and a fake control behind it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path

from space.ingress.control import Control
from space.ingress.doors import Doors
from space.ingress.limits import Limits
from space.rpc import ingress_api as api
from space.testing.fakeports import FakePorts

ID = "i" + "a2" * 10
OTHER = "i" + "b3" * 10
DOMAIN = "boxes.example.com"


@dataclass
class Town:
    """ports: the fake control. address: the TCP listener's. relay: the other one's path."""

    ports: FakePorts
    address: tuple[str, int]
    relay: Path
    doors: Doors

    async def say(self, data: bytes) -> bytes:
        """Send, and everything that comes until the end."""
        reader, writer = await asyncio.open_connection(*self.address)
        writer.write(data)
        try:
            return await asyncio.wait_for(reader.read(), 20)
        finally:
            writer.close()

    async def relayed(self, data: bytes, client: str = "192.0.2.7") -> bytes:
        """The same, handed over by control."""
        reader, writer = await asyncio.open_unix_connection(self.relay)
        writer.write(api.word(api.Relayed(client)) + data)
        try:
            return await asyncio.wait_for(reader.read(), 20)
        finally:
            writer.close()

    async def until(self, holds: Callable[[], bool]) -> None:
        """AssertionError when it does not within ten seconds."""
        async with asyncio.timeout(10):
            while not holds():  # noqa: ASYNC110 - of two processes' worth of tasks there is no one event
                await asyncio.sleep(0.01)


_USUAL = Limits()


@contextlib.asynccontextmanager
async def town(tmp_path: Path, limits: Limits = _USUAL, domain: str = DOMAIN, tls: ssl.SSLContext | None = None) -> AsyncIterator[Town]:
    """One, while the block runs."""
    listener, relay = socket.create_server(("127.0.0.1", 0)), socket.socket(socket.AF_UNIX)
    relay.bind(str(tmp_path / "relay"))
    relay.listen(8)
    with listener, relay:
        async with FakePorts().listening(tmp_path / "ports") as ports:
            control = Control(tmp_path / "ports", limits)
            doors = Doors(listener, relay, domain=domain, dialer=control, tls=tls, limits=limits, relays={os.getuid()})
            doors.open()
            try:
                yield Town(ports, listener.getsockname(), tmp_path / "relay", doors)
            finally:
                await doors.aclose()


def get(host: str = f"80-{ID}.{DOMAIN}", *fields: str, path: str = "/", method: str = "GET") -> bytes:
    """A request that is its connection's last."""
    return "\r\n".join([f"{method} {path} HTTP/1.1", f"Host: {host}", "Connection: close", *fields, "", ""]).encode("latin-1")
