"""Ledger writes that must not hold up what they record: a failure, a deletion, the end of a thing on the host.

One that the host refuses (its disk is full) is owed: it is repeated in the background, the latest of each row only, until it is written.
Until then the row says more than there is, never less, which is what a recovery can undo.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from space.model.errors import SpaceError
from space.node import limits

log = logging.getLogger(__name__)


class Owed:
    """One a node, within its loop."""

    def __init__(self) -> None:
        self._writes: dict[str, Callable[[], None]] = {}
        self._task: asyncio.Task[None] | None = None
        self._given_up = False

    def write(self, row: str, step: Callable[[], None]) -> None:
        """Do it now, or owe it; it takes the place of what is owed for that row."""
        self._writes[row] = step
        try:
            self.settle(row)
        except SpaceError as error:
            log.warning("ledger: %s is owed: %s", row, error)
            if self._task is None or self._task.done():
                self._task = asyncio.create_task(self._repeat(), name="ledger writes that are owed")

    def settle(self, *rows: str) -> None:
        """Write what is owed for these rows now; raises the SpaceError of the first that does not go."""
        for row in rows:
            if row in self._writes:
                self._writes[row]()
                del self._writes[row]

    def give_up(self) -> None:
        """The process is ending: the next node undoes what the rows still say."""
        self._given_up = True

    async def _repeat(self) -> None:
        pause = limits.RELEASE_PAUSE_FIRST
        while self._writes and not self._given_up:
            await asyncio.sleep(pause)
            pause = min(pause * 2, limits.RELEASE_PAUSE_LAST)
            for row in list(self._writes):
                try:
                    self.settle(row)
                except SpaceError as error:
                    log.info("ledger: %s is still owed: %s", row, error)
