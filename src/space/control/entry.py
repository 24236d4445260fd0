"""A live sandbox in memory: its record, what is under way with it, and who waits for it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from space.control.records import Record, Repeat
from space.control.timers import Timer
from space.model.egress import Ask
from space.model.errors import SpaceError
from space.model.sandbox import Phase

THERE = frozenset({Phase.RUNNING, Phase.PAUSED, Phase.SUSPENDED, Phase.STOPPED})  # it was made
SETTLED = frozenset({*THERE, Phase.GONE, Phase.FAILED})


class Entry:
    """A live sandbox."""

    def __init__(self, record: Record, repeat: Repeat | None = None) -> None:
        self.record = record
        self.repeat = repeat
        self.creating = False
        self.kept: asyncio.Future[Any] | None = None  # a new one's row, on its way to the store
        self.ran = record.phase not in (Phase.REQUESTED, Phase.PREPARING)
        self.ran_first = False  # its first command was counted, or nobody will know how long it took
        self.fault: SpaceError | None = None
        self.lost = False  # the session ended while it was made: the next one's list decides
        self.seen = -1  # the node's revision of the last level, within this session
        self.told = record.phase  # the last phase of which there is an event
        self.busy = False  # as the node's last level says
        self.memory_told: Timer | None = None  # until it is due, no further event of want of memory
        self.memory_news: tuple[int, str | None] | None = None  # what is told then
        self.burying = False  # it has ended, and that is not committed yet
        self.promised: asyncio.Task[None] | None = None
        self.turn = asyncio.Lock()  # who holds it moves it between running and rest, or takes an instant of it
        self.waking: asyncio.Task[SpaceError | None] | None = None  # for the calls that are held
        self.held = 0  # calls that wait until it runs
        self.resting = False  # a rule puts it to rest
        self.generation_seen = 0  # of its life, as the node's last level says
        self.stored: dict[str, Any] = {}  # what of it is on the node's disk, and how its life began, as its last level says
        self.said: str | None = None  # the reason of the node's last level
        self.policy_seen: tuple[str, int] | None = None  # digest and generation that the node decides by, as it said last
        self.telling: asyncio.Task[None] | None = None  # what tells the node of another one
        self.asks: dict[str, Ask] = {}  # requests that wait for a person
        self.asks_told = (0, 0)  # a minute, and how many were told in it
        self.worker_crashes: int | None = None  # as the node's last level says
        self.grants: list[str] = []  # that are attached when it is made
        self.alarms: dict[tuple[str, str], int] | None = None  # of its credentials, by kind and grant, as the node's last level says
        self.expiry: Timer | None = None
        self.expiry_us: int | None = None  # what that timer is set to
        self._moved = asyncio.Event()

    async def committed(self) -> None:
        """Its row is in the store; the store's fault where it cannot be. Nobody is told of a sandbox before."""
        if self.kept is not None:
            await asyncio.shield(self.kept)

    @property
    def unkept(self) -> bool:
        """The store did not take its row, so it is given up."""
        return self.kept is not None and self.kept.done() and not self.kept.cancelled() and self.kept.exception() is not None

    def move(self, record: Record) -> None:
        """The next revision; everybody who waits looks again."""
        self.record = record
        self.look()

    def look(self) -> None:
        """Everybody who waits looks again."""
        moved, self._moved = self._moved, asyncio.Event()
        moved.set()

    async def until(self, claim: Callable[[Record], bool], seconds: float) -> bool:
        """Whether `claim` came true in time. An end counts once it is committed: what is answered is listed."""
        try:
            async with asyncio.timeout(seconds):
                while self.burying or not claim(self.record):
                    await self._moved.wait()
        except TimeoutError:
            return False
        return True
