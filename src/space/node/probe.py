"""One guest booted with KVM, to learn what /dev/kvm is worth, and undone again.

A finding is: it said hello; or it was started and did not within `limits.KVM_PROBE`, or its VMM ended before. Everything else that goes
wrong (no memory, a full disk, rootd away) says nothing of KVM, and is raised.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import replace

from space.config.artefacts import Store
from space.model.errors import DeadlineExceeded, NotFound, SandboxDied, Unavailable, Unsupported
from space.model.ids import new_sandbox_id
from space.model.sandbox import MIB, Phase
from space.node import limits
from space.node.board import Board
from space.node.ledger import Record
from space.node.sandbox import Sandbox
from space.node.stages import Stage
from space.node.surroundings import Surroundings

# No tenant has this name (it does not begin with a letter).
TENANT = "-probe"
_MEMORY_MIB = 256


async def probe_kvm(around: Surroundings, store: Store, kernel: str) -> str | None:
    """Why guests of this kernel do not get there under KVM, None when one said hello. SpaceError when neither was found out."""
    manifest = next((each for each in store.templates() if each.kernel == kernel), None)
    if manifest is None:
        raise NotFound(f"no template boots kernel {kernel}")
    spawned, hello = asyncio.Event(), asyncio.Event()

    async def trace(sandbox: str, stage: Stage, when: str) -> None:
        if (stage, when) == (Stage.SPAWN, "after"):
            spawned.set()
        if (stage, when) == (Stage.BOOT, "after"):
            hello.set()
        await around.trace(sandbox, stage, when)

    record = Record(
        sandbox=new_sandbox_id(),
        tenant=TENANT,
        generation=1,
        template=manifest.name,
        digest=manifest.digest,
        cpus=1,
        memory_mib=_MEMORY_MIB,
        disk_mib=-(-manifest.disk_bytes // MIB),
        env={},
        phase=Phase.REQUESTED,
        accelerator="kvm",
    )
    around.gate.enter(record.sandbox, record.memory_mib)
    # on a board of its own: nobody else is to see it
    sandbox = Sandbox.create(record, replace(around, board=Board(), trace=trace))
    try:
        await _first(sandbox, spawned)
        with suppress(TimeoutError):
            async with asyncio.timeout(limits.KVM_PROBE):
                await _first(sandbox, hello)
        return _finding(sandbox, spawned=spawned.is_set(), hello=hello.is_set())
    finally:
        with suppress(DeadlineExceeded):  # its deletion goes on
            await sandbox.delete()


def _finding(sandbox: Sandbox, *, spawned: bool, hello: bool) -> str | None:
    if hello:
        return None
    if sandbox.fault is None:
        if spawned:
            return f"no hello within {limits.KVM_PROBE:g} s"
        raise Unavailable("the guest that tries out KVM was given up before it began")
    # rootd found no device, or QEMU ended over it: so it does when KVM refuses
    if isinstance(sandbox.fault, Unsupported | SandboxDied):
        return str(sandbox.fault)
    raise sandbox.fault


async def _first(sandbox: Sandbox, event: asyncio.Event) -> None:
    """Until the event, or until the sandbox's opening is over."""
    tasks = {asyncio.create_task(event.wait()), asyncio.create_task(sandbox.opened())}
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
