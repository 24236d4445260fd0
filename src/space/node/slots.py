"""Slots: which numbers are free, and a few slots that are made before anybody asks for one.

A number is a namespace and a uid, so it stays taken while a disk of that uid is there. Making a namespace with its ruleset takes rootd
20 to 140 ms, so a node that has sandboxes keeps some ready, with the descriptors of their edge. A used slot never comes back: it is
destroyed after its VMM's confirmed death and its worker's, and another is made. A ready slot has no row in the ledger: a node that finds a
slot of nobody after a crash frees it. They are made when a sandbox has come up, not on the way of one that is coming, and while one is
left not before its first command had its time; they are gone `limits.READY_LINGER` after the last sandbox.
"""

from __future__ import annotations

import asyncio
import logging
from typing import NamedTuple

from space.config.instance import SLOTS
from space.model.errors import NoCapacity, SpaceError
from space.node import limits
from space.node.edge import Edge
from space.node.ledger import Holding, Kind, Ledger
from space.node.ops import Rootd
from space.node.release import Releases
from space.node.shield import ended

log = logging.getLogger(__name__)


class Taken(NamedTuple):
    """A slot's number, and its edge, which is the taker's to close. Not ready: the taker makes it."""

    number: int
    edge: Edge | None


class Slots:
    """One a node. synthetic: the network of the addresses that stand for names. ready: how many are kept ready."""

    def __init__(
        self,
        ledger: Ledger,
        rootd: Rootd,
        releases: Releases,
        synthetic: str,
        *,
        count: int = SLOTS,
        ready: int = limits.READY_SLOTS,
    ) -> None:
        self.synthetic = synthetic
        self._ledger = ledger
        self._rootd = rootd
        self._releases = releases
        self._count = count
        self._wanted = ready
        self._ready: list[tuple[int, Edge]] = []
        self._ahead: set[int] = set()  # ready or being made
        self._leaving: set[int] = set()  # being freed
        self._filling: asyncio.Task[None] | None = None
        self._draining: asyncio.Task[None] | None = None
        self._rest: asyncio.TimerHandle | None = None
        self._soon: asyncio.TimerHandle | None = None

    def take(self, sandbox: str, generation: int, tenant: str) -> Taken:
        """A slot, held in the ledger; NoCapacity when there is none."""
        self._stay()
        self._not_yet()
        slot, edge = self._ready[-1] if self._ready else (self._free(), None)
        self._ledger.hold(Holding(Kind.SLOT, str(slot), sandbox, generation, tenant))
        if edge is not None:
            self._ready.pop()
            self._ahead.discard(slot)
        return Taken(slot, edge)

    async def make(self, slot: int, *, literal: bool) -> Edge:
        """A slot that was taken and is not ready."""
        return await Edge.make(self._rootd, slot, self.synthetic, literal=literal)

    def refill(self) -> None:
        """Make what is missing, in the background: at once where nothing is ready, else when nobody asked for a slot for a moment."""
        self._stay()
        self._not_yet()
        if self._ready:
            self._soon = asyncio.get_running_loop().call_later(limits.READY_QUIET, self._begin_fill)
        else:
            self._begin_fill()

    def _begin_fill(self) -> None:
        self._soon = None
        if len(self._ready) < self._wanted and (self._filling is None or self._filling.done()):
            self._filling = asyncio.create_task(self._fill(), name="slots made ahead")

    def _not_yet(self) -> None:
        if self._soon is not None:
            self._soon.cancel()
            self._soon = None

    def rest(self) -> None:
        """There is no sandbox: let go of what is ready, unless one comes soon."""
        self._stay()
        self._not_yet()
        if self._ahead or (self._filling is not None and not self._filling.done()):
            self._rest = asyncio.get_running_loop().call_later(limits.READY_LINGER, self._begin_drain)

    async def drain(self) -> None:
        """Let go of what is ready, now."""
        self._stay()
        self._begin_drain()
        assert self._draining is not None, "it has just begun"
        await self._draining

    async def free(self, slot: int) -> None:
        """Remove a slot that nobody holds; nobody gets its number meanwhile."""
        self._leaving.add(slot)
        await self._releases.namespace(slot)
        self._leaving.discard(slot)

    def _free(self) -> int:
        held = {int(each.name) for each in self._ledger.holdings() if each.kind is Kind.SLOT}
        taken = held | self._ahead | self._leaving
        slot = next((number for number in range(self._count) if number not in taken), None)
        if slot is None:
            raise NoCapacity(f"all {self._count} slots of this machine are taken", hint="delete sandboxes that have failed")
        return slot

    async def _fill(self) -> None:
        while len(self._ready) < self._wanted:
            try:
                slot = self._free()
            except SpaceError:  # none to spare
                return
            self._ahead.add(slot)
            try:
                edge = await self.make(slot, literal=False)
            except (SpaceError, OSError) as error:
                log.warning("no slot is made ahead: %s", error)  # the next sandbox makes its own, and is told
                self._ahead.discard(slot)
                await self.free(slot)
                return
            self._ready.append((slot, edge))

    def _begin_drain(self) -> None:
        self._rest = None
        self._not_yet()
        if self._draining is None or self._draining.done():
            self._draining = asyncio.create_task(self._drain(), name="slots let go")

    async def _drain(self) -> None:
        if self._filling is not None:
            await ended(self._filling)
        going = sorted(self._ahead)
        for _, edge in self._ready:
            edge.close()
        self._ready.clear()
        self._ahead.clear()
        self._leaving.update(going)
        for slot in going:
            await self.free(slot)

    def _stay(self) -> None:
        if self._rest is not None:
            self._rest.cancel()
            self._rest = None
