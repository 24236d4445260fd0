"""What a person sees: each step with its time, and the sandbox's own output indented beneath it."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager


class Steps:
    """Prints steps. Colour and the line that is replaced are for terminals only."""

    def __init__(self) -> None:
        self._tty = sys.stdout.isatty()
        self._column = 0
        self._began = time.monotonic()

    @contextmanager
    def step(self, what: str) -> Iterator[list[str]]:
        """One step; what is appended to the list is said of it when it is done."""
        began = time.monotonic()
        if self._tty:
            print(f"  \x1b[2m…\x1b[0m {what}", end="", flush=True)
        said: list[str] = []
        try:
            yield said
        except BaseException:
            self._line("\x1b[31m✗\x1b[0m" if self._tty else "✗", what, "", time.monotonic() - began)
            raise
        self._line("\x1b[32m✓\x1b[0m" if self._tty else "✓", what, ", ".join(said), time.monotonic() - began)

    def output(self, text: str) -> None:
        """Live output of the sandbox: every line indented, control characters taken out (it is a guest's)."""
        if self._tty and self._column == 0:
            sys.stdout.write("\r\x1b[K")
        for letter in text:
            if letter == "\n":
                sys.stdout.write("\n")
                self._column = 0
            elif letter.isprintable():
                if self._column == 0:
                    sys.stdout.write("      \x1b[2m│\x1b[0m " if self._tty else "      | ")
                sys.stdout.write(letter)
                self._column += 1
        sys.stdout.flush()

    def total(self) -> float:
        """Seconds since the beginning."""
        return time.monotonic() - self._began

    def _line(self, mark: str, what: str, said: str, seconds: float) -> None:
        if self._column:
            print()
            self._column = 0
        start = "\r\x1b[K" if self._tty else ""
        print(f"{start}  {mark} {what + (': ' + said if said else ''):<88} {seconds:6.1f} s", flush=True)
