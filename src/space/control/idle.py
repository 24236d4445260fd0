"""Idle rules: one timer a sandbox, none a request. When it is due, times are compared, and it sleeps on if something happened meanwhile.

watched (runs, has a rule) --quiet for its seconds--> act, once; again only if told that acting failed
something in hand (activity, or the node's level `busy`) --> no timer; the end of it starts one
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from space.control.activity import Activity
from space.control.timers import Timer, Timers
from space.model.sandbox import IdlePolicy


@dataclass(slots=True)
class _Watched:
    policy: IdlePolicy
    since: float  # monotonic: nothing earlier counts
    busy: bool
    timer: Timer | None = None


class Idle:
    """The rules of all running sandboxes. act: called once a sandbox has been quiet for long enough."""

    def __init__(
        self,
        timers: Timers,
        activity: Activity,
        act: Callable[[str, IdlePolicy], None],
        *,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._timers = timers
        self._activity = activity
        self._act = act
        self._now = now
        self._watched: dict[str, _Watched] = {}
        activity.listen(self._active)

    def heed(self, sandbox: str, policy: IdlePolicy | None, *, busy: bool) -> None:
        """It is like this now. policy: None when it has no rule, or does not run."""
        known = self._watched.get(sandbox)
        if policy is None:
            if known is not None:
                self._let_go(known)
                del self._watched[sandbox]
            return
        if known is None or known.policy != policy:
            if known is not None:
                self._let_go(known)
            known = self._watched[sandbox] = _Watched(policy, self._now(), busy)
        elif known.busy and not busy:
            known.since = self._now()
        known.busy = busy
        self._arm(sandbox, known, policy.seconds)

    def again(self, sandbox: str, seconds: float) -> None:
        """Acting failed: look again in a while."""
        known = self._watched.get(sandbox)
        if known is not None:
            self._arm(sandbox, known, seconds)

    def _active(self, sandbox: str, active: bool) -> None:
        known = self._watched.get(sandbox)
        if known is not None and not active:
            self._arm(sandbox, known, known.policy.seconds)

    def _arm(self, sandbox: str, known: _Watched, seconds: float) -> None:
        if known.timer is None and not self._in_use(sandbox, known):
            known.timer = self._timers.after(seconds, partial(self._due, sandbox, known))

    def _due(self, sandbox: str, known: _Watched) -> None:
        known.timer = None
        if self._watched.get(sandbox) is not known or self._in_use(sandbox, known):
            return
        left = self._left(sandbox, known)
        if left > 0:
            self._arm(sandbox, known, left)
        else:
            self._act(sandbox, known.policy)

    def _in_use(self, sandbox: str, known: _Watched) -> bool:
        return known.busy or self._activity.active(sandbox) > 0

    def _left(self, sandbox: str, known: _Watched) -> float:
        """By the monotonic clock: a wall clock that is set makes nothing idle."""
        last = self._activity.last(sandbox)
        return known.policy.seconds - (self._now() - max(known.since, last or 0.0))

    def _let_go(self, known: _Watched) -> None:
        if known.timer is not None:
            self._timers.cancel(known.timer)
            known.timer = None
