"""Ends that come by themselves: the time to live and the idle rule. Both pause, suspend and stop on the same way as a caller.

At the end of its time to live a sandbox is deleted, or put to rest and then kept with no end (`expires_us` None) until somebody acts;
one that is still being made is put to rest once it runs. One that rests by its idle rule, or was paused, has its time to live all the same;
of one that was suspended or stopped by request it stands still. A rule that cannot be carried out (no node) is tried again.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from functools import partial

from space.control.activity import Activity
from space.control.book import Book
from space.control.ends import AGAIN_SECONDS, Ends
from space.control.entry import Entry
from space.control.idle import Idle
from space.control.lives import Lives, Rest, Wish
from space.control.records import WANTED
from space.core.lifecycle.table import Request
from space.model.errors import SpaceError
from space.model.sandbox import IdlePolicy, Phase

_RESTS = (Phase.PAUSED, Phase.SUSPENDED, Phase.STOPPED, Phase.FAILED)
log = logging.getLogger("space.control.sandboxes")


class Expiry:
    """Timers of all live sandboxes. observe: told of each idle rule that took effect."""

    def __init__(self, book: Book, ends: Ends, activity: Activity, lives: Lives, observe: Callable[[str], None]) -> None:
        self._book = book
        self._ends = ends
        self._activity = activity
        self._lives = lives
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
        record, action = entry.record, entry.record.spec.on_timeout
        reason = f"its time to live of {record.spec.ttl_seconds} s was over"
        if action == "delete":
            self._book.spawn(self._ends.unwant(entry, reason), f"expire {sandbox}")
        elif record.phase in _RESTS and not deeper(action, record.phase):
            self._book.spawn(self._book.change(entry, ["expires_at"], expires_us=None, reason=record.reason or reason), f"expire {sandbox}")
        elif record.phase in (Phase.RUNNING, Phase.PAUSED):
            self._rest(entry, action, Rest("timeout", reason))
        else:
            entry.expiry_us = None  # it is being made, or on its way: its next change sets the timer again, to the time that is past

    def _be_idle(self, sandbox: str, policy: IdlePolicy) -> None:
        entry = self._book.live.get(sandbox)
        if entry is None or entry.record.desired != WANTED:
            return
        reason = f"idle for {policy.seconds} s"
        self._observe(policy.action)
        if policy.action == "delete":
            self._book.spawn(self._ends.unwant(entry, reason), f"delete idle {sandbox}")
        else:
            self._rest(entry, policy.action, Rest("idle", reason))

    def _rest(self, entry: Entry, action: str, rest: Rest) -> None:
        if not entry.resting:
            entry.resting = True
            self._book.spawn(self._carry_out(entry, Wish(Request(action)), rest), f"{action} {entry.record.id}")

    async def _carry_out(self, entry: Entry, wish: Wish, rest: Rest) -> None:
        sandbox = entry.record.id
        try:
            await self._lives.carry_out(entry, wish, rest)
        except SpaceError as error:
            log.warning("cannot %s %s yet (%s): %s", wish, sandbox, rest.reason, error, extra={"sandbox": sandbox})
            if rest.by == "timeout":
                self._book.timers.after(AGAIN_SECONDS, partial(self._expire, sandbox))
            else:
                self._idle.again(sandbox, AGAIN_SECONDS)
        finally:
            entry.resting = False


def deeper(action: str, phase: Phase) -> bool:
    """Whether a rule's action frees something that a sandbox at rest still takes: the memory of a paused one."""
    return phase is Phase.PAUSED and action in ("suspend", "stop")
