"""A control behind a real uvicorn on loopback, a SimNode behind it, and a client: what every dialogue starts from."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import json
import os
import shutil
import socket
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import httpx
import uvloop

from space.config.instance import Instance
from space.config.settings import Settings
from space.control import http, server
from space.control.app import Api
from space.control.handover import HandOver
from space.control.ingress import Ports
from space.control.services import Services
from space.ingress.control import Control
from space.ingress.doors import Doors
from space.ingress.limits import Limits
from space.model.ids import InstanceName
from space.testing.simnode import SimNode

_USUAL = Limits()


@dataclass
class World:
    """One server."""

    instance: Instance
    settings: Settings
    node: SimNode
    services: Services | None = None
    web: http.Server | None = None
    port: int = 0
    client: httpx.AsyncClient = field(default_factory=lambda: httpx.AsyncClient(trust_env=False, verify=False))

    @property
    def key(self) -> str:
        return self.instance.admin_key.read_text().strip()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def as_key(self, key: str) -> httpx.AsyncClient:
        return httpx.AsyncClient(base_url=self.url, headers={"Authorization": f"Bearer {key}"}, timeout=30, trust_env=False, verify=False)

    async def other_tenant(self, tenant: str = "other", scope: str = "tenant") -> httpx.AsyncClient:
        answer = await self.client.post("/v1/keys", json={"tenant": tenant, "scope": scope})
        assert answer.status_code == 201, answer.text
        return self.as_key(answer.json()["key"])

    async def create(self, **spec: Any) -> str:
        answer = await self.client.post("/v1/sandboxes", json=spec)
        assert answer.status_code == 201, answer.text
        return str(answer.json()["id"])

    async def phase(self, sandbox: str) -> str:
        return str((await self.client.get(f"/v1/sandboxes/{sandbox}")).json()["phase"])

    async def raw(self, data: bytes, *, finish: bool = True) -> bytes:
        """Bytes in, everything that comes back until the server closes."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(data)
        if finish:
            await writer.drain()
        try:
            return await asyncio.wait_for(reader.read(), 10)
        finally:
            writer.close()


async def until(claim: Callable[[], Any], seconds: float = 10) -> None:
    """Wait for a condition; it may be a coroutine function."""
    async with asyncio.timeout(seconds):
        while True:
            found = claim()
            if inspect.isawaitable(found):
                found = await found
            if found:
                return
            await asyncio.sleep(0.005)


@contextlib.asynccontextmanager
async def controlled(world: World, *, port: int = 0) -> AsyncIterator[World]:
    """control alone, in this loop, with the world's store and node. port: 0 for a free one."""
    listener = socket.create_server(("127.0.0.1", port))
    async with server.compose(world.instance, world.settings) as services:
        following = asyncio.create_task(services.link.run())
        hand_over = HandOver(world.settings, world.instance.relay_socket)
        web = world.web = http.Server(http.config(Api(services), hand_over=hand_over))
        web.on_stop = services.stopping
        asked = _listening(world.instance.ports_socket)
        ports = Ports(asked, {os.getuid()}, services, world.instance.node_socket, web.accept)
        ports.open()
        serving = asyncio.create_task(web.serve(sockets=[listener]))
        world.services, world.port = services, listener.getsockname()[1]
        world.client = world.as_key(world.key)
        try:
            await until(lambda: web.started)
            yield world
        finally:
            await world.client.aclose()
            await ports.aclose()
            await hand_over.aclose()
            asked.close()
            web.stop()
            await serving
            following.cancel()
            await asyncio.wait({following})


@contextlib.asynccontextmanager
async def an_ingress(world: World, limits: Limits = _USUAL) -> AsyncIterator[str]:
    """An ingress beside it in this loop; the value is its URL."""
    instance = world.instance
    instance.run.joinpath("endpoint.json").unlink(missing_ok=True)
    with socket.create_server(("127.0.0.1", 0)) as listener, _listening(instance.relay_socket) as relay:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        instance.endpoint.write_text(json.dumps({"ingress": url}))
        control = Control(instance.ports_socket, limits)
        doors = Doors(listener, relay, domain=world.settings.domain, dialer=control, tls=None, limits=limits, relays={os.getuid()})
        doors.open()
        try:
            yield url
        finally:
            await doors.aclose()
            instance.relay_socket.unlink()


def _listening(path: Path) -> socket.socket:
    path.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen(64)
    return listener


@contextlib.asynccontextmanager
async def a_world(root: Path, *, node_up: bool = True, **settings: Any) -> AsyncIterator[World]:
    """An instance below `root` with a node, and control not started."""
    short = Path(tempfile.mkdtemp(prefix="sc-"))  # a UNIX socket's path has 107 characters at most
    instance = Instance(InstanceName("t"), 0, data_root=root / "data", run_root=short)
    instance.control_data.mkdir(parents=True, exist_ok=True)
    instance.run.mkdir(parents=True)
    instance.endpoint.write_text(json.dumps({"ingress": "http://127.0.0.1:7071"}))  # as serve says it; nobody listens there
    world = World(instance, replace(Settings(), **settings), SimNode(instance.node_socket))
    try:
        if node_up:
            world.node.start()
        yield world
    finally:
        await world.node.stop()
        shutil.rmtree(short)


def dialogue(
    *, node_up: bool = True, start: bool = True, **settings: Any
) -> Callable[[Callable[..., Awaitable[None]]], Callable[..., None]]:
    """A test as a coroutine function of a world; the node is connected when it begins. start: run control as well."""

    def made(talk: Callable[..., Awaitable[None]]) -> Callable[..., None]:
        async def whole(root: Path, **parameters: Any) -> None:
            async with a_world(root, node_up=node_up, **settings) as world:
                if not start:
                    await talk(world, **parameters)
                    return
                async with controlled(world):
                    assert world.services is not None
                    if node_up:
                        await asyncio.wait_for(world.services.link.wait_up(), 10)
                    await talk(world, **parameters)

        def test(tmp_path: Path, **parameters: Any) -> None:
            uvloop.run(whole(tmp_path, **parameters))

        functools.update_wrapper(test, talk)
        del test.__wrapped__  # type: ignore[attr-defined]
        own = list(inspect.signature(talk).parameters.values())[1:]
        path = inspect.Parameter("tmp_path", inspect.Parameter.POSITIONAL_OR_KEYWORD)
        test.__signature__ = inspect.Signature([path, *own])  # type: ignore[attr-defined]
        return test

    return made
