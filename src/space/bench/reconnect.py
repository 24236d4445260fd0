"""`reconnect`: control dies, and a thousand clients come at once to read on, each at its own process and from where it had been; then a
thousand more run a command in sandboxes that were suspended for idleness, which has to wake them.

The node is simulated, as in `control`, and clients hold no connection when control dies: measured is the storm at the new one, where
who gets no room is told when to come again, and does. Beside it stands the same by 32 clients in peace.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
import time
from pathlib import Path

import uvloop

from space.bench import figures
from space.bench.figures import Figure, Section
from space.bench.load import Connection, closed_loop
from space.bench.stack import Stack
from space.config.instance import DATA_ROOT
from space.model.errors import ProtocolError
from space.testing.controlprocess import Control, a_process
from space.testing.simcontrol import World, a_world, until

CLIENTS = 1000
SANDBOXES = 100
_CALM = 32
_AT_MOST = 120.0  # seconds for all: after that some will never be back
_BYTES = 64 * 1024
_READ = 40 * 1024  # before control died
_SLEEPER = json.dumps({"idle": {"seconds": 1, "action": "suspend"}}).encode()
_EXEC = json.dumps({"argv": ["true"]}).encode()


def measure(ours: Stack) -> Section:
    """Some storms, each with a control that begins anew."""
    with tempfile.TemporaryDirectory(prefix="bench-reconnect-", dir=DATA_ROOT) as root:
        calm, back, woken, all_s, turned_away = uvloop.run(_storms(Path(root), 2 if ours.quick else 5))
    return Section(
        {
            "per_s": figures.of(back, "clients/s", calm_per_s=calm, clients=CLIENTS),
            "storm_over_calm": Figure(figures.median(back) / calm, "ratio", {"calm_per_s": calm}),
            "woken_per_s": figures.of(woken, "clients/s", sandboxes=SANDBOXES, clients=CLIENTS),
            "all_back_s": figures.of(all_s, "s from control's death", clients=CLIENTS, turned_away=figures.median(turned_away)),
        },
        {"per_s": back, "woken_per_s": woken, "all_back_s": all_s, "turned_away": turned_away},
    )


async def _storms(root: Path, count: int) -> tuple[float, list[float], list[float], list[float], list[float]]:
    back: list[float] = []
    woken: list[float] = []
    all_s: list[float] = []
    turned_away: list[float] = []
    async with a_world(root, max_sandboxes=2 * SANDBOXES) as world, a_process(world) as control:
        connection = await Connection.to(world.port, world.key)
        sandboxes = [await _made(connection) for _ in range(SANDBOXES)]
        paths = [await _started(connection, sandboxes[number % SANDBOXES]) for number in range(CLIENTS)]
        calm = await _calm(world, paths)
        sleepers = [await _made(connection, _SLEEPER) for _ in range(SANDBOXES)]
        for _ in range(count):
            ready, ended, refused = await _storm(world, control, [_Reader(path) for path in paths])
            back.append(CLIENTS / (ended - ready))
            all_s.append(ended)
            turned_away.append(float(refused))
            woken.append(await _wakes(world, sleepers))
    return calm, back, woken, all_s, turned_away


async def _made(connection: Connection, spec: bytes = b"{}") -> str:
    reply = await connection.ask("POST", "/v1/sandboxes", spec)
    return str(json.loads(reply.body)["id"])


async def _started(connection: Connection, sandbox: str) -> str:
    """The path of the output of a process that has written all it does."""
    body = json.dumps({"argv": ["spam", str(_BYTES)]}).encode()
    reply = await connection.ask("POST", f"/v1/sandboxes/{sandbox}/processes", body)
    if reply.status not in (200, 201):
        raise ProtocolError(f"a process was not started: {reply.status} {reply.body!r}")
    return f"/v1/sandboxes/{sandbox}/processes/{json.loads(reply.body)['id']}/output?stdout={_READ}&follow=true"


class _Reader:
    """One client. refused: how often it was told to come again."""

    def __init__(self, path: str) -> None:
        self._path = path
        self.refused = 0

    async def come_back(self, port: int, key: str) -> None:
        """Until it has read the rest of the output."""
        while True:
            try:
                connection = await Connection.to(port, key)
            except ConnectionError:
                await asyncio.sleep(0.05)
                continue
            try:
                status, head = await connection.open("GET", self._path)
                if status == 200:
                    await _rest(connection)
                    return
                if status not in (429, 503):
                    raise ProtocolError(f"{self._path}: {status}")
                self.refused += 1
                await asyncio.sleep(_pause(head))
            except (ConnectionError, asyncio.IncompleteReadError):
                await asyncio.sleep(0.05)
            finally:
                connection.close()


def _pause(head: str) -> float:
    return next((float(line[12:]) for line in head.split("\r\n") if line.lower().startswith("retry-after:")), 0.2)


async def _rest(connection: Connection) -> None:
    """The chunks of an answer to their end."""
    got = 0
    while size := int(await connection.reader.readline(), 16):
        await connection.reader.readexactly(size + 2)
        got += size
    if got < _BYTES - _READ:
        raise ProtocolError(f"{got} bytes came of {_BYTES - _READ} and their frames")


async def _calm(world: World, paths: list[str]) -> float:
    """Clients a second, a few at a time."""
    left = iter(paths)

    async def one(_: Connection) -> float:
        await _Reader(next(left)).come_back(world.port, world.key)
        return 0.0

    connection = await Connection.to(world.port, world.key)  # each makes its own, as after a storm
    began = time.perf_counter()
    await closed_loop([connection] * _CALM, len(paths), one)
    return len(paths) / (time.perf_counter() - began)


async def _storm(world: World, control: Control, readers: list[_Reader]) -> tuple[float, float, int]:
    """Seconds from control's death until it is back and until all have read; how often a client was told to come again."""
    await control.kill()
    began = time.perf_counter()
    clients = [asyncio.create_task(reader.come_back(world.port, world.key)) for reader in readers]
    await control.start()
    ready = time.perf_counter() - began
    async with asyncio.timeout(_AT_MOST):
        await asyncio.gather(*clients)
    return ready, time.perf_counter() - began, sum(reader.refused for reader in readers)


async def _wakes(world: World, sandboxes: list[str]) -> float:
    """Clients a second that run a command in a suspended sandbox, ten in each, all at once."""
    await until(lambda: all(world.node.sandboxes[sandbox].phase == "suspended" for sandbox in sandboxes), 60)

    async def run(number: int) -> None:
        path = f"/v1/sandboxes/{sandboxes[number % len(sandboxes)]}/processes"
        while True:
            client = await Connection.to(world.port, world.key)
            try:
                status, head = await client.open("POST", path, _EXEC)
            finally:
                client.close()
            if status in (200, 201):
                return
            if status not in (429, 503):
                raise ProtocolError(f"{path}: {status}")
            await asyncio.sleep(_pause(head))

    began = time.perf_counter()
    async with asyncio.timeout(_AT_MOST):
        await asyncio.gather(*map(run, range(CLIENTS)))
    return CLIENTS / (time.perf_counter() - began)
