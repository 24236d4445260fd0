"""Things that are due at a time of day, earliest first, on one timer of the event loop: no polling."""

from __future__ import annotations

import asyncio
import heapq
import itertools
import time
from collections.abc import Callable

# The wall clock may be set while the timer sleeps; a sandbox must not outlive its time by more than this.
_LONGEST_SLEEP = 60.0


class Timer:
    """Something that is due; without an action once it was cancelled."""

    __slots__ = ("action",)

    def __init__(self, action: Callable[[], object]) -> None:
        self.action: Callable[[], object] | None = action


class Timers:
    """A heap of (time, timer). Actions are short and do not raise."""

    def __init__(self, now: Callable[[], float] = time.time) -> None:
        self._now = now
        self._heap: list[tuple[float, int, Timer]] = []
        self._cancelled = 0
        self._order = itertools.count()
        self._handle: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._heap)

    def at(self, when: float, action: Callable[[], object]) -> Timer:
        """Run `action` at `when` (UNIX seconds), or in the next turn of the loop if that is past."""
        timer = Timer(action)
        heapq.heappush(self._heap, (when, next(self._order), timer))
        if self._heap[0][2] is timer:
            self._arm()
        return timer

    def after(self, seconds: float, action: Callable[[], object]) -> Timer:
        """Run `action` in so many seconds."""
        return self.at(self._now() + seconds, action)

    def cancel(self, timer: Timer) -> None:
        """Do not run it, and let go of what it would do. Idempotent, also after it has run."""
        if timer.action is None:
            return
        timer.action = None
        self._cancelled += 1
        if self._cancelled * 2 > len(self._heap):
            self._heap = [item for item in self._heap if item[2].action is not None]
            heapq.heapify(self._heap)
            self._cancelled = 0

    def close(self) -> None:
        """Forget everything."""
        self._heap.clear()
        if self._handle is not None:
            self._handle.cancel()

    def _arm(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
        if self._heap:
            delay = min(max(self._heap[0][0] - self._now(), 0.0), _LONGEST_SLEEP)
            self._handle = asyncio.get_running_loop().call_later(delay, self._due)

    def _due(self) -> None:
        self._handle = None
        while self._heap and self._heap[0][0] <= self._now():
            _, _, timer = heapq.heappop(self._heap)
            action, timer.action = timer.action, None
            if action is None:
                self._cancelled -= 1
            else:
                action()
        self._arm()
