"""Releases: how each thing that a sandbox has on the host is undone, and its ledger row with it.

The same functions serve the normal end, the unwinding of a create that failed, and the sweep after a crash. They are idempotent, a
cancellation does not tear them, and they are repeated until they have succeeded: the host must not keep anything, whatever
happens to rootd meanwhile. A row that cannot be removed is owed, so that a full disk cannot keep a thing on the host.
Callers that answer somebody bound their own waiting.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from space.model.errors import DeadlineExceeded, SpaceError
from space.model.rootd import SandboxOp
from space.node import limits
from space.node.egress import Egress
from space.node.ledger import Kind, Ledger, Record
from space.node.ops import Rootd
from space.node.owed import Owed
from space.node.pidfd import Pidfd
from space.node.shield import to_the_end

log = logging.getLogger(__name__)


class Releases:
    """The undo of each holding."""

    def __init__(self, rootd: Rootd, ledger: Ledger, egress: Egress) -> None:
        self._rootd = rootd
        self._egress = egress
        self._ledger = ledger
        self._owed = Owed()
        self._given_up = False
        self._soon: set[asyncio.Task[None]] = set()

    def give_up(self) -> None:
        """The process is ending: releases that are not done are left to the next node, and their callers are cancelled."""
        self._given_up = True
        self._owed.give_up()

    def record(self, record: Record) -> None:
        """Write the sandbox's row, or owe it."""
        self._owed.write(_row_of(record.sandbox), lambda: self._ledger.put(record))

    async def forget(self, sandbox: str) -> None:
        """Remove the sandbox's row when all is undone; with it, what is owed of it."""

        async def once() -> None:
            self._owed.settle(_row_of(sandbox), f"{Kind.VMM} {sandbox}", f"{Kind.FILES} {sandbox}")
            self._ledger.forget(sandbox)

        await self._until_done(once, f"forget {sandbox}")

    def row(self, kind: Kind, name: str) -> None:
        """Remove the row of a thing that is gone, or owe that."""
        self._owed.write(f"{kind} {name}", lambda: self._ledger.release(kind, name))

    async def vmm(self, op: SandboxOp) -> None:
        """Kill the VMM and return when it is confirmed dead."""

        async def once() -> None:
            descriptor = await self._rootd.adopt_vmm(op.sandbox, op.generation)
            pidfd = Pidfd(descriptor) if descriptor is not None else None
            try:
                # even without a living VMM: its cgroup may hold a process that it left behind
                await self._rootd.kill_vmm(op.sandbox, op.generation)
                if pidfd is not None:
                    try:
                        async with asyncio.timeout(limits.DEATH):
                            await pidfd.wait()
                    except TimeoutError:
                        raise DeadlineExceeded(f"the VMM of {op.sandbox} outlives SIGKILL by {limits.DEATH:.0f} s") from None
            finally:
                if pidfd is not None:
                    pidfd.close()

        await self._until_done(once, f"kill the VMM of {op.sandbox}")
        self.row(Kind.VMM, op.sandbox)

    async def files(self, op: SandboxOp) -> None:
        """Remove directory, disk, sockets and cgroup."""
        await self._until_done(lambda: self._rootd.destroy_sandbox(op.sandbox, op.generation), f"remove the files of {op.sandbox}")
        self.row(Kind.FILES, op.sandbox)

    @property
    def busy(self) -> bool:
        """Whether something is still to be done of what was put off."""
        return bool(self._soon)

    def later(self, work: Coroutine[Any, Any, None]) -> None:
        """Do it soon; the next node does it where this one does not."""
        task = asyncio.create_task(work, name="release")
        self._soon.add(task)
        task.add_done_callback(self._soon.discard)

    async def generation(self, sandbox: str) -> int | None:
        """Which generation of it the host has."""
        found: list[int] = []

        async def once() -> None:
            found.extend(each.generation for each in (await self._rootd.describe()).sandboxes if each.sandbox == sandbox)

        await self._until_done(once, f"look for {sandbox}")
        return found[0] if found else None

    async def snapshot(self, snapshot: str) -> None:
        """Its files are gone, and its memory is let go."""
        await self._until_done(lambda: self._rootd.discard_snapshot(snapshot), f"discard snapshot {snapshot}")

    async def egress(self, op: SandboxOp) -> None:
        """Its worker is dead, and no service holds anything of it."""
        await self._until_done(lambda: self._egress.end(op), f"end the egress of {op.sandbox}")

    async def grants(self, sandbox: str) -> None:
        """The broker knows of none that was attached to it."""

        async def once() -> None:
            if self._ledger.holds(Kind.GRANTS, sandbox):
                await self._egress.forget(sandbox)
                self.row(Kind.GRANTS, sandbox)

        await self._until_done(once, f"forget the grants of {sandbox}")

    async def namespace(self, slot: int) -> None:
        """Remove the slot's namespace; its number stays taken."""
        await self._until_done(lambda: self._rootd.destroy_slot(slot), f"remove slot {slot}")

    async def slot(self, slot: int) -> None:
        """Remove the slot's namespace and give its number back."""
        await self.namespace(slot)
        self.row(Kind.SLOT, str(slot))

    async def _until_done(self, step: Callable[[], Awaitable[None]], what: str) -> None:
        async def repeat() -> None:
            pause = limits.RELEASE_PAUSE_FIRST
            while not self._given_up:
                try:
                    return await step()
                except (SpaceError, OSError) as error:
                    # Conflict: the kernel has not let go of a dead VMM's things yet. Unavailable: rootd is being started again.
                    log.log(logging.INFO if pause < limits.RELEASE_PAUSE_LAST else logging.WARNING, "cannot %s yet: %s", what, error)
                await asyncio.sleep(pause)
                pause = min(pause * 2, limits.RELEASE_PAUSE_LAST)
            raise asyncio.CancelledError

        await to_the_end(repeat(), what)


def _row_of(sandbox: str) -> str:
    return f"record {sandbox}"
