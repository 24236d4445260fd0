"""Ends that come by themselves: the time to live and the idle rule. Both pause through the same call as a caller's pause.

At the end of its time to live a sandbox is deleted, or paused and then kept with no end (`expires_us` None) until somebody acts;
one that is still being made is paused once it runs. A rule that cannot be carried out (no node) is tried again.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable
from functools import partial

from space.control.activity import Activity
from space.control.book import Book
from space.control.ends import AGAIN_SECONDS, Ends
from space.control.entry import Entry, Pausing
from space.control.idle import Idle
from space.control.records import WANTED
from space.model.errors import SpaceError
from space.model.sandbox import IdlePolicy, Phase

log = logging.getLogger("space.control.sandboxes")


class Expiry:
    """Timers of all live sandboxes. pause: has the node pause one, and takes its level."""

    def __init__(
        self, book: Book, ends: Ends, activity: Activity, pause: Callable[[str], Awaitable[None]], observe: Callable[[str], None]
    ) -> None:
        self._book = book
        self._ends = ends
        self._activity = activity
        self._pause_there = pause
        self._observe = observe
        self._idle = Idle(book.timers, activity, self._be_idle)
        book.on_change.append(self.heed)

    def heed(self, entry: Entry) -> None:
        """The record, or what the node says of it, changed."""
        record = entry.record
        self._set_timer(entry, record.expires_us if record.desired == WANTED else None)
        watched = record.desired == WANTED and record.phase is Phase.RUNNING
        self._idle.heed(record.id, record.spec.idle if watched else None, busy=entry.busy)
        if record.ended:
            self._activity.forget(record.id)

    def _set_timer(self, entry: Entry, expires_us: int | None) -> None:
        if expires_us == entry.expiry_us:
            return
        if entry.expiry is not None:
            self._book.timers.cancel(entry.expiry)
        entry.expiry, entry.expiry_us = None, expires_us
        if expires_us is not None:
            # By its id: an action that held the record would keep it, environment and all, for a day after its end.
            entry.expiry = self._book.timers.at(expires_us / 1e6, partial(self._expire, entry.record.id))

    def _expire(self, sandbox: str) -> None:
        entry = self._book.live.get(sandbox)
        if entry is None or entry.record.desired != WANTED or entry.record.expires_us is None:
            return
        if entry.record.expires_us > time.time_ns() // 1000:
            return  # it was set anew, and has another timer
        record = entry.record
        reason = f"its time to live of {record.spec.ttl_seconds} s was over"
        if record.spec.on_timeout == "delete":
            self._book.spawn(self._ends.unwant(entry, reason), f"expire {sandbox}")
        elif record.phase is Phase.RUNNING:
            self._pause(entry, Pausing(reason, timeout=True))
        elif record.phase is Phase.PAUSED:
            self._book.spawn(self._book.change(entry, ["expires_at"], expires_us=None, reason=reason), f"expire {sandbox}")
        else:
            entry.expiry_us = None  # it is being made: its next change sets the timer again, to the time that is past

    def _be_idle(self, sandbox: str, policy: IdlePolicy) -> None:
        entry = self._book.live.get(sandbox)
        if entry is None or entry.record.desired != WANTED:
            return
        reason = f"idle for {policy.seconds} s"
        self._observe(policy.action)
        if policy.action == "delete":
            self._book.spawn(self._ends.unwant(entry, reason), f"delete idle {sandbox}")
        else:
            self._pause(entry, Pausing(reason, timeout=False))

    def _pause(self, entry: Entry, why: Pausing) -> None:
        if entry.pausing is None:
            entry.pausing = why
            self._book.spawn(self._carry_out(entry, why), f"pause {entry.record.id}")

    async def _carry_out(self, entry: Entry, why: Pausing) -> None:
        sandbox = entry.record.id
        try:
            await self._pause_there(sandbox)
        except SpaceError as error:
            log.warning("cannot pause %s yet (%s): %s", sandbox, why.reason, error, extra={"sandbox": sandbox})
            if why.timeout:
                self._book.timers.after(AGAIN_SECONDS, partial(self._expire, sandbox))
            else:
                self._idle.again(sandbox, AGAIN_SECONDS)
        finally:
            entry.pausing = None
