"""The figures of each running sandbox over time: one timer for all of them, spread over the interval, and none when nothing runs.

A sandbox that is paused is not asked, and keeps what it has. Samples are packed (10 numbers, 80 bytes) in a ring.
"""

from __future__ import annotations

import asyncio
import functools
import heapq
import logging
import struct
import time
from collections import deque
from collections.abc import Awaitable, Callable

from space.model.errors import SpaceError
from space.node import limits
from space.rpc.node_api import Metrics, MetricsHistory, Sample

log = logging.getLogger(__name__)
_PACKED = struct.Struct("<10Q")
_MOST = (1 << 64) - 1
_GOLDEN = 0.6180339887  # its multiples fill the interval evenly, however many there are

Ask = Callable[[], Awaitable[Metrics]]


class History:
    """One a node, within its loop. interval: seconds, 0 for none."""

    def __init__(self, interval: float = 0.0) -> None:
        self._interval = interval
        self._rings: dict[str, deque[bytes]] = {}
        self._asks: dict[str, Ask] = {}
        self._due: list[tuple[float, str]] = []
        self._timer: asyncio.TimerHandle | None = None
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._phase = 0.0

    def follow(self, sandbox: str, ask: Ask) -> None:
        """It runs: ask it from now on. Idempotent."""
        if self._interval <= 0 or sandbox in self._asks:
            return
        self._asks[sandbox] = ask
        self._rings.setdefault(sandbox, deque(maxlen=limits.HISTORY))
        self._phase = (self._phase + _GOLDEN) % 1.0
        heapq.heappush(self._due, (asyncio.get_running_loop().time() + self._interval * self._phase, sandbox))
        self._arm()

    def leave(self, sandbox: str) -> None:
        """It does not run now. Idempotent."""
        if self._asks.pop(sandbox, None) is not None:
            self._due = [each for each in self._due if each[1] != sandbox]
            heapq.heapify(self._due)
            self._arm()

    def forget(self, sandbox: str) -> None:
        """It is gone. Idempotent."""
        self.leave(sandbox)
        self._rings.pop(sandbox, None)
        task = self._tasks.get(sandbox)
        if task is not None:
            task.cancel()

    def get(self, sandbox: str, since_us: int) -> MetricsHistory:
        """What there is, newer than that."""
        samples = [Sample(*_PACKED.unpack(each)) for each in self._rings.get(sandbox, ())]
        return MetricsHistory(int(self._interval * 1000), [each for each in samples if each.at_us > since_us])

    def stop(self) -> None:
        """The node is ending."""
        self._due.clear()
        self._arm()
        for task in self._tasks.values():
            task.cancel()

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._due:
            self._timer = asyncio.get_running_loop().call_at(self._due[0][0], self._tick)

    def _tick(self) -> None:
        self._timer = None
        now = asyncio.get_running_loop().time()
        while self._due and self._due[0][0] <= now:
            due, sandbox = heapq.heappop(self._due)
            # a machine that slept has missed some; they are not made up for
            heapq.heappush(self._due, (max(due + self._interval, now + self._interval / 2), sandbox))
            if sandbox not in self._tasks:
                task = asyncio.create_task(self._sample(sandbox, self._asks[sandbox]), name=f"{sandbox}: sample")
                self._tasks[sandbox] = task
                task.add_done_callback(functools.partial(self._sampled, sandbox))
        self._arm()

    def _sampled(self, sandbox: str, _: asyncio.Task[None]) -> None:
        self._tasks.pop(sandbox, None)

    async def _sample(self, sandbox: str, ask: Ask) -> None:
        try:
            said = await ask()
        except SpaceError as error:  # it has ended, was paused, or is too busy: a sample is missing
            log.debug("%s: no sample: %s", sandbox, error)
            return
        ring = self._rings.get(sandbox)
        if ring is not None:
            ring.append(_pack(said))


def _pack(said: Metrics) -> bytes:
    return _PACKED.pack(
        time.time_ns() // 1000,
        said.memory_total,
        said.memory_available,
        said.cpu_user_ms,
        said.cpu_system_ms,
        said.disk_total,
        said.disk_used,
        said.processes,
        min(said.host_memory_bytes, _MOST),
        min(said.host_cpu_ms, _MOST),
    )
