"""services.json: which processes an earlier serve left running, so that this one adopts them instead of starting others.

A process is known by pid, start time and boot together; a bare pid may be anybody's by now.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from space.host import namespaces
from space.serve import kernel
from space.serve.service import Process, Role


@dataclass(frozen=True, slots=True)
class Record:
    """One service that was started. build: what it runs by (runtime and settings); another build is not adopted."""

    role: str
    pid: int
    started: int
    boot: str
    build: str


def save(path: Path, records: Iterable[Record]) -> None:
    """Replace the file; a reader sees the old or the new one."""
    staged = path.with_name(f".{path.name}.{os.getpid()}")
    staged.write_text(json.dumps([asdict(record) for record in records], indent=1) + "\n")
    staged.chmod(0o600)
    staged.rename(path)


def load(path: Path) -> list[Record]:
    """What an earlier serve wrote; empty when there is none, or none that can be read."""
    try:
        return [Record(**entry) for entry in json.loads(path.read_text())]
    except (FileNotFoundError, ValueError, TypeError):
        return []


def attach(record: Record, role: Role) -> Process | None:
    """The process of a record, if it still lives."""
    if record.boot != kernel.boot_id():
        return None
    pidfd = namespaces.open_process(record.pid, record.started)
    if pidfd is None:
        return None
    return Process(role, record.pid, pidfd, record.started, None)


def kill_all(path: Path) -> list[str]:
    """SIGKILL every recorded process that lives and wait until it is dead: for removing an instance that nobody serves."""
    from space.serve.service import ended

    killed = []
    for record in load(path):
        process = attach(record, Role(record.role, 0, 0))
        if process is None:
            continue
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(process.pidfd, signal.SIGKILL)
        ended(process, 10)
        process.close()
        killed.append(record.role)
    return killed
