"""What a process needs of its sandbox: where its output goes, and the guest that it is in."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from space.node.guest import Guest
from space.node.spool import Account

if TYPE_CHECKING:
    from space.node.process import Process


class House(Protocol):
    """What a process needs of its sandbox."""

    directory: Path
    account: Account

    @property
    def channel(self) -> Guest:
        """The guest; SandboxDied when there is none."""

    @property
    def full(self) -> bool:
        """Whether all spools of the sandbox have their quota."""

    def make_room(self) -> None:
        """Drop what has ended, oldest first, while it is full."""

    def changed(self, process: Process) -> None:
        """Its state has changed."""

    def keep_in_memory(self, process: Process) -> None:
        """A short run has ended before its client: its record is written when there are many, or the node is stopped."""

    def in_background(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        """Do it until it is done, or the node stops."""

    async def forget_in_guest(self, process: str) -> None:
        """Kill what is left of it there; faults are logged."""
