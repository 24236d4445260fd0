"""The processes of every sandbox of this node, and of those that are gone: their output can be read until the retention ends.

    <node's data>/spool/<sandbox>/<spools>        `gone` beside them: since when the sandbox is no more, in seconds since 1970

One timer for each sandbox that is gone and left something; nothing is looked at in vain. A restart of the node finds all of it again.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
import time
from contextlib import suppress
from pathlib import Path

from space.model.errors import NotFound
from space.model.ids import sandbox_id
from space.node import limits
from space.node.processes import Processes, Quota

log = logging.getLogger(__name__)
_GONE = "gone"


class Archive:
    """One a node. retention: seconds. Make it within the event loop."""

    def __init__(self, directory: Path, quota: Quota, retention: float = 3600.0) -> None:
        self._directory = directory
        self._quota = quota
        self._retention = retention
        self._all: dict[str, Processes] = {}
        self._retired: dict[str, asyncio.TimerHandle] = {}  # in the order of their ends

    def load(self) -> None:
        """Read what an earlier node left. `retire_strangers` comes once it is known which sandboxes live."""
        with suppress(FileNotFoundError):
            for path in sorted(self._directory.iterdir()):
                with suppress(ValueError):
                    self._all[path.name] = Processes(sandbox_id(path.name), path, self._quota)
                    self._all[path.name].load()

    def of(self, sandbox: str) -> Processes:
        """Those of a sandbox that there is."""
        timer = self._retired.pop(sandbox, None)
        if timer is not None:
            timer.cancel()
        if sandbox not in self._all:
            self._all[sandbox] = Processes(sandbox, self._directory / sandbox, self._quota)
        self._all[sandbox].directory.joinpath(_GONE).unlink(missing_ok=True)
        return self._all[sandbox]

    def find(self, sandbox: str) -> Processes:
        """Also those of a sandbox that is gone; NotFound when nothing is known of it."""
        found = self._all.get(sandbox)
        if found is None:
            raise NotFound(f"sandbox {sandbox[:64]} is not on this node")
        return found

    def retire(self, sandbox: str) -> None:
        """The sandbox is gone: what it left is kept until the retention ends."""
        processes = self._all.get(sandbox)
        if processes is None or sandbox in self._retired:
            return
        processes.lose("the sandbox was deleted")
        if not len(processes):
            self._forget(sandbox)
            return
        since = _since(processes.directory / _GONE)
        left = max(since + self._retention - time.time(), 0.0)
        self._retired[sandbox] = asyncio.get_running_loop().call_later(left, self._forget, sandbox)
        while len(self._retired) > 1 and self._too_much():
            oldest = next(iter(self._retired))
            log.info("the output of %s goes before its time: those of sandboxes that are gone are too large together", oldest)
            self._forget(oldest)

    def discard(self, sandbox: str) -> None:
        """Nobody will ask for anything of that sandbox."""
        if sandbox in self._all:
            self._all[sandbox].lose("nobody asks for it")
            self._forget(sandbox)

    def retire_strangers(self, living: set[str]) -> None:
        """After a restart: everything of sandboxes that are gone, the oldest first."""
        strangers = [each for each in self._all if each not in living]
        for sandbox in sorted(strangers, key=lambda each: _since(self._all[each].directory / _GONE)):
            self.retire(sandbox)

    def stop(self) -> None:
        """The node is ending; everything stays where it is."""
        for timer in self._retired.values():
            timer.cancel()
        for processes in self._all.values():
            processes.stop()

    def write(self) -> None:
        """Before an orderly end: what is in memory alone goes to the disk."""
        for processes in self._all.values():
            processes.write()

    def _too_much(self) -> bool:
        retired = [self._all[each] for each in self._retired]
        size = sum(each.account.bytes for each in retired)
        return size > limits.RETIRED_BYTES or sum(map(len, retired)) > limits.RETIRED_PROCESSES

    def _forget(self, sandbox: str) -> None:
        timer = self._retired.pop(sandbox, None)
        if timer is not None:
            timer.cancel()
        processes = self._all.pop(sandbox)
        processes.drop()
        shutil.rmtree(processes.directory, ignore_errors=True)


def _since(path: Path) -> float:
    """When the sandbox went, from now on where nobody has written it yet (and the disk may not take it: then a restart begins anew)."""
    try:
        return min(float(path.read_text()), time.time())
    except (OSError, ValueError):
        now = time.time()
        with suppress(OSError):
            path.write_text(f"{now:.3f}")
        return now
