"""A client of the process routes, as tests of control are: start, look, read, and WebSockets."""

from __future__ import annotations

import json
from typing import Any

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from space.model.frames import MEDIA_TYPE, Decoder, Frame
from space.testing.simcontrol import World, until

NDJSON = {"Accept": "application/x-ndjson"}


async def start(world: World, sandbox: str, *argv: str, **more: Any) -> str:
    """A process in the background: its path."""
    answer = await world.client.post(f"/v1/sandboxes/{sandbox}/processes", json={"argv": list(argv), **more})
    assert answer.status_code == 201, answer.text
    assert answer.headers["location"] == f"/v1/sandboxes/{sandbox}/processes/{answer.json()['id']}"
    return f"/v1/sandboxes/{sandbox}/processes/{answer.json()['id']}"


async def info(world: World, process: str) -> dict[str, Any]:
    """The process object."""
    answer = await world.client.get(process)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


async def state(world: World, process: str) -> str:
    """Its state."""
    return str((await info(world, process))["state"])


async def ended(world: World, process: str) -> None:
    """Until it has ended."""

    async def over() -> bool:
        return await state(world, process) != "running"

    await until(over)


async def output(world: World, process: str, **query: Any) -> list[Frame]:
    """Its output as frames."""
    answer = await world.client.get(process + "/output", params=query)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == MEDIA_TYPE
    return Decoder().receive(answer.content)


def socket(world: World, path: str, **more: Any) -> connect:
    """A WebSocket with the world's key."""
    head = {"Authorization": f"Bearer {world.key}"} | more.pop("headers", {})
    return connect(f"ws://127.0.0.1:{world.port}{path}", additional_headers=head, proxy=None, compression=None, **more)


async def frames(connection: ClientConnection) -> list[Frame]:
    """All of them until it closes."""
    decoder, found = Decoder(), []
    try:
        while True:
            message = await connection.recv()
            assert isinstance(message, bytes)
            found += decoder.receive(message)
    except ConnectionClosed:
        return found


async def refused(world: World, path: str, **more: Any) -> tuple[int, str]:
    """The status and code of a handshake that is refused with a problem."""
    try:
        async with socket(world, path, **more):
            pass
    except InvalidStatus as error:
        answer = error.response
    else:
        raise AssertionError("it was accepted")
    assert answer.headers["content-type"] == "application/problem+json"
    problem = json.loads(answer.body)
    assert problem["request_id"] == answer.headers["x-request-id"]
    assert problem["status"] == answer.status_code
    return answer.status_code, problem["code"]
