"""A program on a terminal of its own, for tests: what it shows, what is typed to it, and how it leaves the terminal."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import termios
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

PATIENCE = 60.0


class OnTerminal:
    """A process whose controlling terminal is a new pty. The test holds both ends, so that modes can be looked at after its end."""

    def __init__(self, command: Sequence[str | Path], env: Mapping[str, str], *, rows: int = 30, cols: int = 100) -> None:
        self.master, self.slave = pty.openpty()
        self.resize(rows, cols)
        self.before = termios.tcgetattr(self.slave)
        self.seen = b""
        self.process = subprocess.Popen(
            # A job in the background of a plain shell passes on that it ignores interrupts.
            ["setsid", "--ctty", "env", "--default-signal=INT,QUIT", *map(str, command)],
            env={**env, "TERM": "xterm-256color"},
            stdin=self.slave,
            stdout=self.slave,
            stderr=self.slave,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self.master)
        os.close(self.slave)

    def resize(self, rows: int, cols: int) -> None:
        """Another size of the window: the kernel sends SIGWINCH."""
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, cols, 0, 0))

    def type(self, data: bytes) -> None:
        """Press keys."""
        os.write(self.master, data)

    def read(self, seconds: float = 0.05) -> bytes:
        """What is shown meanwhile."""
        if select.select([self.master], [], [], seconds)[0]:
            self.seen += os.read(self.master, 65536)
        return self.seen

    def until(self, what: bytes | Callable[[bytes], Any]) -> bytes:
        """Read until it was shown (a regular expression), or is so."""
        deadline = time.monotonic() + PATIENCE
        while not self._is_so(what):
            assert time.monotonic() < deadline, f"{what!r} did not come: {self.seen!r}"
            ended = self.process.poll() is not None
            self.read()
            assert not ended or self._is_so(what), f"it ended before {what!r} came: {self.seen!r}"
        return self.seen

    def _is_so(self, what: bytes | Callable[[bytes], Any]) -> Any:
        return re.search(what, self.seen, re.DOTALL) if isinstance(what, bytes) else what(self.seen)

    def is_raw(self) -> bool:
        """Whether keys are passed on as they are."""
        return not termios.tcgetattr(self.slave)[3] & (termios.ICANON | termios.ECHO | termios.ISIG)

    def wait_raw(self) -> None:
        """Until the program has taken the terminal over."""
        self.until(lambda _: self.is_raw())

    def status(self) -> int:
        """Its exit status, once it has ended; what it showed until then is in `seen`."""
        deadline = time.monotonic() + PATIENCE
        while self.process.poll() is None:
            assert time.monotonic() < deadline, f"it does not end: {self.seen!r}"
            self.read()
        while select.select([self.master], [], [], 0.05)[0]:
            self.seen += os.read(self.master, 65536)
        return self.process.returncode

    def modes_are_as_before(self) -> bool:
        """Whether the terminal was put back."""
        return termios.tcgetattr(self.slave) == self.before
