"""What is going on in each sandbox on behalf of a client: commands, terminals, forwarded connections, transfers, watches.

A sandbox with something in hand is not idle. Looking at it (GET, lists, metrics, a process's state) is no activity.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Listener = Callable[[str, bool], None]


class Activity:
    """Counts by sandbox. Every `begin` has its `end`; `during` pairs them."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._active: dict[str, int] = {}
        self._last: dict[str, float] = {}
        self._listener: Listener = lambda sandbox, active: None

    def listen(self, listener: Listener) -> None:
        """`listener(sandbox, active)` is called when the first thing begins and when the last has ended. It is short and does not raise."""
        self._listener = listener

    def begin(self, sandbox: str) -> None:
        """Something begins."""
        count = self._active.get(sandbox, 0)
        self._active[sandbox] = count + 1
        self._last[sandbox] = self._now()
        if count == 0:
            self._listener(sandbox, True)

    def end(self, sandbox: str) -> None:
        """Something has ended."""
        count = self._active.get(sandbox, 0)
        if count == 0:
            return  # the sandbox was forgotten meanwhile
        self._last[sandbox] = self._now()
        if count > 1:
            self._active[sandbox] = count - 1
            return
        del self._active[sandbox]
        self._listener(sandbox, False)

    def active(self, sandbox: str) -> int:
        """How many things are in hand."""
        return self._active.get(sandbox, 0)

    def last(self, sandbox: str) -> float | None:
        """When something last began or ended (monotonic seconds); None: never."""
        return self._last.get(sandbox)

    def forget(self, sandbox: str) -> None:
        """The sandbox has ended."""
        self._active.pop(sandbox, None)
        self._last.pop(sandbox, None)

    @contextmanager
    def during(self, sandbox: str) -> Iterator[None]:
        """Begin, and end."""
        self.begin(sandbox)
        try:
            yield
        finally:
            self.end(sandbox)
