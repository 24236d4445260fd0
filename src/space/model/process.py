"""A process of a sandbox as everybody outside sees it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from space.model.sandbox import ExitStatus

ProcessState = Literal["running", "exited", "lost"]
StdinState = Literal["none", "open", "closed"]


@dataclass(frozen=True, slots=True)
class PtySize:
    """The size of a terminal, in lines and columns."""

    rows: int = 24
    cols: int = 80


@dataclass(frozen=True, slots=True)
class ProcessInfo:
    """A process. Times are UNIX seconds. `lost`: its sandbox ended first, `reason` says how.

    stdout_bytes, stderr_bytes: produced so far; stdout_first, stderr_first: the oldest byte that can still be read. All output of
    a terminal is stdout. stdin_bytes: taken so far. `exit` is set once it has exited.
    """

    id: str
    sandbox: str
    pid: int
    argv: list[str]
    cwd: str | None
    user: str | None
    pty: bool
    state: ProcessState
    started_at: float
    ended_at: float | None
    stdout_bytes: int
    stderr_bytes: int
    stdout_first: int
    stderr_first: int
    stdin: StdinState
    stdin_bytes: int
    exit: ExitStatus | None = None
    reason: str | None = None
