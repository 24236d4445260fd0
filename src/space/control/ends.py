"""Ends: a promise on the disk first, then the node; repeats join the first, and a node that is away hears of it when it is back."""

from __future__ import annotations

import asyncio
import logging
from functools import partial

from space.control import limits
from space.control.book import Book
from space.control.entry import Entry
from space.control.link import NodeLink
from space.control.records import UNWANTED, WANTED
from space.model.errors import SpaceError
from space.model.sandbox import Phase
from space.rpc.node_api import SandboxState, Target

log = logging.getLogger("space.control.sandboxes")
AGAIN_SECONDS = 5.0


class Ends:
    """Who ends sandboxes."""

    def __init__(self, book: Book, link: NodeLink) -> None:
        self._book = book
        self._link = link
        self._deleting: set[str] = set()

    async def unwant(self, entry: Entry, reason: str) -> None:
        """Promise the end, on the disk, and set it going. Repeats join the first."""
        if entry.record.ended:
            return
        if entry.promised is None:
            entry.promised = self._book.spawn(self._promise(entry, reason), f"delete {entry.record.id}")
        await asyncio.shield(entry.promised)

    def delete_there(self, sandbox: str) -> None:
        """Have the node delete it, once at a time; without a session the next one's list brings it back here."""
        if sandbox not in self._deleting:
            self._deleting.add(sandbox)
            self._book.spawn(self._delete_on_node(sandbox), f"delete {sandbox} on the node")

    def fail(self, entry: Entry, fault: SpaceError) -> None:
        """A creation failed: those who wait get `fault`."""
        if entry.record.ended:
            return
        entry.fault = fault
        self.delete_there(entry.record.id)
        if entry.record.desired == WANTED:
            self._book.end(entry, Phase.FAILED, fault.message)

    async def _promise(self, entry: Entry, reason: str) -> None:
        fields = {"desired": UNWANTED, "phase": Phase.DELETING, "reason": reason} if entry.record.desired == WANTED else {}
        try:
            await self._book.promise(entry, **fields)
        finally:
            self.delete_there(entry.record.id)

    async def _delete_on_node(self, sandbox: str) -> None:
        try:
            await self._link.call("delete", Target(sandbox), SandboxState, seconds=limits.DELETE_SECONDS)
        except SpaceError as error:
            log.warning("cannot delete %s on the node yet: %s", sandbox, error, extra={"sandbox": sandbox})
            if self._link.is_up:
                self._book.timers.after(AGAIN_SECONDS, partial(self.delete_there, sandbox))
            return
        finally:
            self._deleting.discard(sandbox)
        entry = self._book.live.get(sandbox)
        if entry is not None and not entry.record.ended and entry.record.desired == UNWANTED:
            self._book.end(entry, Phase.GONE, entry.record.reason)
