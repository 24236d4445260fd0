"""How a guest is shut down before its VMM is ended: asked, waited for, and given up where it does not answer."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any

from space.model.errors import NoCapacity, SandboxDied, SpaceError
from space.node import limits
from space.node.life import Life
from space.node.shield import ended
from space.node.vmm.seam import SHUT_DOWN, Vmm

log = logging.getLogger(__name__)
STALLED = "the host's disk is full: it stands still until there is room for what it writes"
ROOM = "free space below the data directory"


async def unless_stalled(life: Life, work: Coroutine[Any, Any, None]) -> None:
    """Do it while it lives; NoCapacity as soon as its guest stands still for want of room."""
    stalled = asyncio.create_task(life.stalled.wait(), name=f"{life.name}: no room")
    task = asyncio.create_task(life.while_alive(work), name=f"{life.name}: its files")
    try:
        await asyncio.wait({stalled, task}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise NoCapacity(f"sandbox {life.name} cannot write its files: {STALLED}", hint=ROOM)
        task.result()
    finally:
        await ended(stalled, task)


async def halt(life: Life, *, paused: bool) -> None:
    """Its files are on its disk and its VMM has ended; a guest that does not get there in time is left as it is. SandboxDied when the VMM
    ended before its guest had: what the guest had not written yet is lost, and nobody is told that it was stopped.
    """
    if life.machine is None or life.guest is None:
        return
    try:
        async with asyncio.timeout(limits.HALT):
            if paused:
                await life.go_on()
            ending = asyncio.ensure_future(life.machine.wait())
            try:
                with suppress(SandboxDied):  # its end may be quicker than its answer
                    await life.while_alive(life.guest.shutdown())
                why = await asyncio.shield(ending)
            finally:
                ending.cancel()
    except (TimeoutError, SpaceError) as error:
        why = "in time" if isinstance(error, TimeoutError) else f"in order: {error}"
        log.warning("%s: its guest did not shut down %s; it is ended", life.op.sandbox, why)
        return
    if why != SHUT_DOWN:
        raise SandboxDied(f"{why} before its guest had shut down")


async def halt_found(life: Life, vmm: Vmm) -> None:
    """It was being shut down when its node died. If it lives, what it has written reaches its disk before it is ended."""
    try:
        async with asyncio.timeout(limits.HALT):
            machine = await vmm.adopt(life.op.sandbox, life.op.generation)
            if machine is None:
                return
            life.take(machine)
            await machine.resume()
            await life.while_alive(life.open_channel(reconnect=True))
    except (TimeoutError, SpaceError) as error:
        log.warning("%s: its guest cannot be asked to shut down: %s; it is ended", life.op.sandbox, error or "it does not answer")
        return
    await halt(life, paused=False)
