"""Clients of the API's own address that ask for a port of a sandbox: their connection goes to the ingress, whole, and never comes back.

The API's parser has only looked at the head to see for whom it is; the ingress gets the bytes as they came, and reads them by itself. So no
head is read by two who might read it differently, and nothing of a port's is ever parsed here. The ingress answers one request of such a
connection and closes it: the client's next one may be for the API.
"""

from __future__ import annotations

import asyncio
import json
import logging
from pathlib import Path

from space.config.settings import Settings
from space.control import limits
from space.control.e2b import door
from space.control.e2b.ids import ENVD_PORT
from space.control.hosts import Hosts
from space.model.errors import InvalidArgument, SpaceError, Unavailable
from space.rpc import ingress_api as api
from space.rpc.wire import Lost, Wire, dial

log = logging.getLogger("space.control.handover")


class HandOver:
    """relay: the ingress's socket."""

    def __init__(self, settings: Settings, relay: Path) -> None:
        self._settings = settings
        self._hosts = Hosts(settings)
        self._relay = relay
        self._tasks: set[asyncio.Task[None]] = set()

    def wanted(self, fields: list[tuple[bytes, bytes]], local: str) -> bool:
        """Whether a request with that head, to that address of ours, is for a port. What is odd about it is for the API to refuse."""
        head = dict(fields)
        if b"e2b-sandbox-id" not in head and not self._settings.domain:
            return False
        try:
            address = door.addressed(self._settings, head)
        except InvalidArgument:
            return False
        return address is not None and address.port != ENVD_PORT and self._hosts.admit(head.get(b"host", b"").decode("latin-1"), local)

    def take(self, transport: asyncio.Transport, client: str, data: bytes, *, secure: bool) -> None:
        """Take over a connection. data: what came on it so far, from the head's first byte."""
        wire = Wire()
        transport.set_protocol(wire)
        wire.connection_made(transport)
        task = asyncio.get_running_loop().create_task(self._relayed(wire, client, data, secure=secure), name="hand over")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _relayed(self, wire: Wire, client: str, data: bytes, *, secure: bool) -> None:
        try:
            if len(self._tasks) > limits.HANDED_OVER:
                raise Unavailable(f"{limits.HANDED_OVER} clients are at the ingress", hint="repeat in a second")
            ingress = await dial(self._relay, "the ingress")
        except SpaceError as fault:
            wire.write(_answer(fault))
            wire.close()
            return
        try:
            ingress.write(api.word(api.Relayed(client[:64], secure)) + data)
            await _both(wire, ingress)
        finally:
            ingress.abort()
            wire.close()

    async def aclose(self) -> None:
        """Hang up."""
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _both(client: Wire, ingress: Wire) -> None:
    """Until the ingress is done, or either has gone."""
    up = asyncio.ensure_future(_pump(client, ingress))
    down = asyncio.ensure_future(_pump(ingress, client))
    up.add_done_callback(lambda _: down.cancel() if client.gone else None)
    try:
        await down
    except Lost:
        client.abort()
    finally:
        for task in (up, down):
            task.cancel()
        await asyncio.gather(up, down, return_exceptions=True)


async def _pump(source: Wire, sink: Wire) -> None:
    while data := await source.read():
        sink.write(data)
        await sink.drain()
    sink.end()


def _answer(fault: SpaceError) -> bytes:
    body = json.dumps({"code": 503, "message": str(fault)}).encode()
    head = f"HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\nRetry-After: 1\r\n"
    return head.encode() + b"Should-Retry: true\r\nConnection: close\r\n\r\n" + body
