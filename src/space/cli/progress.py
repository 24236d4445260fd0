"""How far a copy has come, for whoever looks at a terminal: bytes and their rate, on one line that is gone at the end."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

from space.cli.context import size

EVERY_SECONDS = 0.1


class Progress:
    """Call it with the bytes so far. A context manager that clears its line. total: how many there will be, where that is known."""

    def __init__(self, *, total: int | None = None, visible: bool | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._total = total
        self._visible = sys.stderr.isatty() if visible is None else visible
        self._clock = clock
        self._began = self._shown = clock()
        self.bytes = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._visible:
            self._write("\r\x1b[K")

    def __call__(self, done: int) -> None:
        """So many bytes are over."""
        self.bytes = done
        now = self._clock()
        if self._visible and now - self._shown >= EVERY_SECONDS:
            self._shown = now
            self._write(f"\r\x1b[K{self.line()}")

    def line(self) -> str:
        """What it says."""
        part = f" of {size(self._total)}" if self._total else ""
        return f"{size(self.bytes)}{part}, {self.rate()}"

    def rate(self) -> str:
        """Bytes a second since it began."""
        return f"{size(self.bytes / max(self._clock() - self._began, 1e-3))}/s"

    def _write(self, text: str) -> None:
        sys.stderr.write(text)
        sys.stderr.flush()
