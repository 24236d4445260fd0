"""What set-up says: one line a step with its time when the step did something, nothing when there was nothing to do."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path


class Progress:
    """Prints from several threads; `did` counts the lines."""

    def __init__(self, *, out: Callable[[str], None] | None = None) -> None:
        self._lock = threading.Lock()
        self._out = out or (lambda line: print(line, flush=True))
        self.did = 0

    def step(self, title: str, work: Callable[[], tuple[Path, bool]]) -> Path:
        """Do `work`, which returns a thing and whether it was made just now; the thing."""
        began = time.monotonic()
        thing, made = work()
        if made:
            self.say(title, time.monotonic() - began)
        return thing

    def say(self, title: str, seconds: float | None = None) -> None:
        """One line."""
        with self._lock:
            self.did += 1
            self._out(f"set-up: {title}" + ("" if seconds is None else f" ({seconds:.1f} s)"))


def complain(words: str) -> None:
    """A refusal or a failure, on standard error."""
    print(f"space: {words}", file=sys.stderr, flush=True)
