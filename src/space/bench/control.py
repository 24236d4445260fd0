"""`control`: the control plane with ten thousand sandboxes of a simulated node, which speaks the node's real protocol and has no guests.

control is a process of its own on one processor, node and clients are on another. Its rate stands beside that of a loop which writes a row
of the same size, one a transaction, into a SQLite database on the same disk.
"""

from __future__ import annotations

import json
import sqlite3
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import uvloop

from space.bench import cost, figures
from space.bench.figures import Figure, Section
from space.bench.load import Connection, beside, closed_loop, open_loop
from space.bench.stack import Stack
from space.config.instance import DATA_ROOT
from space.testing.controlprocess import Control, a_process
from space.testing.simcontrol import World, a_world, until

SANDBOXES = 10_000
STEPS = 10  # the population grows in so many
CLIENTS = 32
PAGE = 100
_SPEC = json.dumps({"template": "base", "metadata": {"task": "bench", "team": "research"}}).encode()
_PROBES = 20
_ROW = b"x" * 700  # about what a sandbox's row and its event take


@dataclass(slots=True)
class _Seen:
    """What was measured while the population grew, a value a step."""

    population: list[int] = field(default_factory=list)
    rate: list[float] = field(default_factory=list)
    cpu_ms: list[float] = field(default_factory=list)
    first_page_ms: list[float] = field(default_factory=list)
    last_page_ms: list[float] = field(default_factory=list)
    event_ms: list[float] = field(default_factory=list)
    memory_mib: list[float] = field(default_factory=list)
    database_mib: list[float] = field(default_factory=list)
    creates_ms: list[float] = field(default_factory=list)
    paced_ms: list[float] = field(default_factory=list)


def measure(ours: Stack) -> Section:
    """Growth to ten thousand, then creates at half the rate, then a restart."""
    count = SANDBOXES // 10 if ours.quick else SANDBOXES
    with tempfile.TemporaryDirectory(prefix="bench-control-", dir=DATA_ROOT) as root:
        floor = _sqlite_rate(Path(root) / "floor.db", 500 if ours.quick else 3000)
        seen, restart = uvloop.run(_grown(Path(root), count))
    rate, population = figures.median(seen.rate), float(seen.population[-1])
    paced = sorted(seen.paced_ms)
    last_pages, first_pages = figures.median(seen.last_page_ms[-3:]), figures.median(seen.first_page_ms[-3:])
    return Section(
        {
            "creates_per_s": figures.of(seen.rate, "creates/s", sqlite_rows_per_s=floor, cpu_ms_each=figures.median(seen.cpu_ms)),
            "creates_over_sqlite": Figure(rate / floor, "ratio", {"sqlite_rows_per_s": floor}),
            "creates_last_over_first": Figure(
                seen.rate[-1] / seen.rate[0], "ratio", {"population": population, "first": seen.rate[0], "last": seen.rate[-1]}
            ),
            "create_p99_ms": Figure(paced[int(len(paced) * 0.99)], "ms", {"creates_per_s": rate / 2, "p50_ms": figures.median(paced)}),
            "page_last_over_first": Figure(
                last_pages / first_pages, "ratio", {"first_page_ms": first_pages, "last_page_ms": last_pages, "sandboxes": population}
            ),
            "page_growth": Figure(
                seen.first_page_ms[-1] / seen.first_page_ms[0], "ratio", {"at": population, "over": float(seen.population[0])}
            ),
            "event_ms": figures.of(seen.event_ms, "ms", sandboxes=population),
            "memory_kib_each": Figure(_slope(seen.population, seen.memory_mib) * 1024, "KiB", {"whole_mib": seen.memory_mib[-1]}),
            "database_kib_each": Figure(_slope(seen.population, seen.database_mib) * 1024, "KiB", {"whole_mib": seen.database_mib[-1]}),
            "restart_ms": Figure(restart["ready"] * 1000, "ms", {"sandboxes": restart["sandboxes"]}),
            "reconcile_ms": Figure(restart["reconciled"] * 1000, "ms", {"sandboxes": restart["sandboxes"]}),
        },
        {
            "population": [float(number) for number in seen.population],
            "creates_per_s": seen.rate,
            "cpu_ms_each": seen.cpu_ms,
            "first_page_ms": seen.first_page_ms,
            "last_page_ms": seen.last_page_ms,
            "event_ms": seen.event_ms,
            "memory_mib": seen.memory_mib,
            "database_mib": seen.database_mib,
            "create_ms": seen.creates_ms,
            "paced_create_ms": seen.paced_ms,
        },
    )


async def _grown(root: Path, count: int) -> tuple[_Seen, dict[str, float]]:
    seen = _Seen()
    async with a_world(root, max_sandboxes=2 * count, max_ttl_seconds=86_400) as world, a_process(world) as control:
        connections = [await Connection.to(world.port, world.key) for _ in range(CLIENTS)]
        await closed_loop(connections, 50, _create)  # code and caches
        assert control.process is not None
        with beside(control.process.pid):
            for _ in range(STEPS):
                await _step(world, control, connections, count // STEPS, seen)
            rate = figures.median(seen.rate) / 2
            seen.paced_ms = [took * 1000 for took in await open_loop(connections, max(200, count // 10), rate, _create)]
        for connection in connections:
            connection.close()
        return seen, await _restarted(world, control)


async def _step(world: World, control: Control, connections: list[Connection], count: int, seen: _Seen) -> None:
    assert control.process is not None
    pid = control.process.pid
    cpu, began = cost.cpu(pid), time.perf_counter()
    took = await closed_loop(connections, count, _create)
    seconds = time.perf_counter() - began
    seen.cpu_ms.append((cost.cpu(pid) - cpu) / count * 1000)
    seen.rate.append(count / seconds)
    seen.creates_ms += [each * 1000 for each in took]
    seen.population.append(len(world.node.sandboxes))
    first, last = await _pages(connections[0])
    seen.first_page_ms.append(first * 1000)
    seen.last_page_ms.append(last * 1000)
    seen.event_ms += await _events(world)
    seen.memory_mib.append(cost.private_mib(pid))
    seen.database_mib.append(sum(file.stat().st_size for file in world.instance.control_data.glob("state.db*")) / (1 << 20))


async def _create(connection: Connection) -> float:
    reply = await connection.ask("POST", "/v1/sandboxes", _SPEC)
    assert reply.status == 201, reply.body
    return reply.seconds


async def _pages(connection: Connection) -> tuple[float, float]:
    """Seconds of the first page, and of one at the end: medians."""
    path, cursor, last = f"/v1/sandboxes?limit={PAGE}", "", ""
    while True:
        page = json.loads((await connection.ask("GET", path + cursor)).body)
        if not (after := page.get("next_cursor")):
            break
        last, cursor = cursor, f"&cursor={after}"
    first = [(await connection.ask("GET", path)).seconds for _ in range(_PROBES)]
    end = [(await connection.ask("GET", path + last)).seconds for _ in range(_PROBES)]
    return figures.median(first), figures.median(end)


async def _events(world: World) -> list[float]:
    """Milliseconds from a sandbox's end at the node to the line of a client that follows."""
    follower = await Connection.to(world.port, world.key)
    try:
        status, _ = await follower.open("GET", "/v1/events?follow=true&kind=phase")
        assert status == 200
        took: list[float] = []
        for sandbox in list(world.node.sandboxes)[-_PROBES:]:
            began = time.perf_counter()
            world.node.lose(sandbox, "bench")
            while sandbox.encode() not in await follower.reader.readline():
                pass
            took.append((time.perf_counter() - began) * 1000)
        return took
    finally:
        follower.close()


async def _restarted(world: World, control: Control) -> dict[str, float]:
    """Seconds of a SIGKILLed control until it is ready, and until it says of the newest sandbox that it runs."""
    await control.kill()
    newest = next(reversed(world.node.sandboxes))
    began = time.perf_counter()
    await control.start()
    ready = time.perf_counter() - began
    connection = await Connection.to(world.port, world.key)

    async def runs() -> bool:
        return bool(json.loads((await connection.ask("GET", f"/v1/sandboxes/{newest}")).body)["phase"] == "running")

    await until(runs, 60)
    connection.close()
    return {"ready": ready, "reconciled": time.perf_counter() - began, "sandboxes": float(len(world.node.sandboxes))}


def _sqlite_rate(path: Path, count: int) -> float:
    """Rows a second of a loop that commits each by itself, as control's store writes: WAL, no fsync a commit."""
    database = sqlite3.connect(path, isolation_level=None)
    try:
        database.execute("PRAGMA journal_mode=WAL")
        database.execute("PRAGMA synchronous=NORMAL")
        database.execute("CREATE TABLE rows (id TEXT PRIMARY KEY, body BLOB)")
        began = time.perf_counter()
        for number in range(count):
            database.execute("BEGIN IMMEDIATE")
            database.execute("INSERT INTO rows VALUES (?, ?)", (f"sb-{number:020}", _ROW))
            database.execute("COMMIT")
        return count / (time.perf_counter() - began)
    finally:
        database.close()


def _slope(xs: Sequence[int], ys: Sequence[float]) -> float:
    """What each one more takes: the median over the steps."""
    steps = [(later - earlier) / (more - less) for (less, more), (earlier, later) in zip(pairwise(xs), pairwise(ys), strict=True)]
    return figures.median(steps)
