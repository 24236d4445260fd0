"""How a sandbox's owner waits for a step: not longer than its deletion is asked for, and not longer than its VMM lives."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from space.model.errors import Gone, ProtocolError, SandboxDied, SpaceError
from space.model.isolation import isolation
from space.model.rootd import CreateSandbox
from space.model.sandbox import Phase
from space.node import limits
from space.node.ledger import Record, host_name
from space.node.processes import Levels
from space.node.shield import ended
from space.node.vmm.console import last_lines
from space.node.vmm.seam import Machine, MachinePlan
from space.rpc.node_api import EgressState, PendingAsk, SandboxState

log = logging.getLogger(__name__)
T = TypeVar("T")
_BROKEN = (SandboxDied, ProtocolError)


async def unless_asked(work: Coroutine[Any, Any, None], deletion: asyncio.Future[None], sandbox: str) -> None:
    """Do it; when the deletion is asked for meanwhile, cancel it, let it clean up, and return."""
    task = asyncio.create_task(work, name=f"{sandbox}: step")
    await asyncio.wait({task, deletion}, return_when=asyncio.FIRST_COMPLETED)
    if not task.done():
        task.cancel()
        await asyncio.wait({task})
    if not task.cancelled() and (error := task.exception()) is not None:
        if not deletion.done():
            raise error
        log.info("%s: stopped for its deletion: %s", sandbox, error)


async def while_alive(machine: Machine, work: Coroutine[Any, Any, T], sandbox: str) -> T:
    """Do it; SandboxDied as soon as the VMM ends."""
    died = asyncio.create_task(machine.wait(), name="VMM's end")
    task = asyncio.create_task(work, name=f"{sandbox}: step")
    try:
        await asyncio.wait({died, task}, return_when=asyncio.FIRST_COMPLETED)
        if not died.done() and isinstance(task.exception(), _BROKEN):
            # a broken channel may only be the first sign of the VMM's end
            await asyncio.wait({died}, timeout=limits.DEATH_AFTER_BREAK)
        if died.done() and (not task.done() or task.exception() is not None):
            raise SandboxDied(died.result())
        return task.result()
    finally:
        await ended(died, task)


async def end_of(died: asyncio.Task[str], broke: asyncio.Task[SpaceError]) -> SpaceError:
    """What it ended of, when the VMM's end or its channel's has come: the VMM's, if that follows within a moment."""
    if not died.done() and not (broke.done() and isinstance(broke.result().__cause__, ProtocolError)):
        await asyncio.wait({died}, timeout=limits.DEATH_AFTER_BREAK)
    return SandboxDied(died.result()) if died.done() else broke.result()


@asynccontextmanager
async def beside(work: Coroutine[Any, Any, None], name: str) -> AsyncIterator[asyncio.Task[None]]:
    """Do it beside what is done within; it has ended when this is left."""
    task = asyncio.create_task(work, name=name)
    try:
        yield task
    finally:
        await ended(task)


def files_of(record: Record, slot: int, snapshot: str = "") -> CreateSandbox:
    """What rootd is to make of it. snapshot: where its disk comes from, if not from its template."""
    name = host_name(record)
    return CreateSandbox(name, record.generation, slot, record.digest, record.disk_mib, record.memory_mib, record.cpus, snapshot)


def plan_of(record: Record) -> MachinePlan:
    """Its machine."""
    return MachinePlan(host_name(record), record.generation, record.cpus, record.memory_mib, record.accelerator)


def state_of(record: Record, levels: Levels, egress: EgressState, asks: list[PendingAsk]) -> SandboxState:
    """What everybody may know of it; the board counts its revision."""
    return SandboxState(
        sandbox=record.sandbox,
        tenant=record.tenant,
        generation=record.generation,
        phase=record.phase.value,
        revision=0,
        isolation=isolation(record.accelerator),
        reason=record.reason,
        stages_ms=record.stages_ms,
        busy=levels.busy,
        oom_kills=levels.oom_kills,
        last_oom=levels.last_oom,
        egress=egress,
        asks=asks,
        start=record.start,
        snapshot_bytes=record.snapshot_bytes + sum(each.bytes for each in record.checkpoints),
        checkpoints=len(record.checkpoints),
    )


def end_during_call(record: Record) -> SpaceError:
    """What a caller is told whose call ended with the sandbox."""
    if record.phase in (Phase.DELETING, Phase.GONE):
        return Gone(f"sandbox {record.sandbox} was deleted during the call")
    return SandboxDied(f"sandbox {record.sandbox} ended during the call: {record.reason or 'its channel broke'}", hint="create another")


def log_failure(record: Record, machine: Machine | None, reason: str, error: Exception) -> None:
    """Tell the operator what it failed of, with the last lines of its console; of a fault of ours with the traceback."""
    tail = last_lines(machine.serial()) if machine is not None else []
    log.warning(
        "%s failed in phase %s: %s%s",
        record.sandbox,
        record.phase.value,
        reason,
        "".join(f"\n    console: {line}" for line in tail),
        exc_info=None if isinstance(error, SpaceError) else error,
    )


def settle(future: asyncio.Future[None]) -> None:
    """It has happened; idempotent."""
    if not future.done():
        future.set_result(None)


def answer_letter(reply: asyncio.Future[SandboxState], answer: SandboxState | SpaceError) -> None:
    """Tell whoever asked, once."""
    if reply.done():
        return
    if isinstance(answer, SpaceError):
        reply.set_exception(answer)
        reply.exception()  # its caller may have left
    else:
        reply.set_result(answer)
