"""Time that passes when a test says so: a clock, and control's timers on it."""

from __future__ import annotations

from space.control.timers import Timers


class Clock:
    """Seconds, as UNIX or monotonic time."""

    def __init__(self, now: float = 1_000_000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


class VirtualTimers(Timers):
    """Timers that are due when `advance` passes their time; each sees the clock at its own time."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self._clock = clock

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        end = self._clock.now + seconds
        while self._heap and self._heap[0][0] <= end:
            self._clock.now = max(self._clock.now, self._heap[0][0])
            self._due()
        self._clock.now = end

    def _arm(self) -> None:
        """Nothing: no loop runs this."""
