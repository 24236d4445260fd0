"""A sandbox that booted, and whose template says when its start command is ready: who connects to a port of it waits for that.

A clone of a warm template was ready when it was copied. Without this the same program would find a port closed in the one sandbox of a
template that had to boot, and open in all others.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

from space.config.manifest import TemplateManifest
from space.core.wire import guest as wire
from space.model.errors import SpaceError
from space.node.sandbox import Sandbox
from space.rpc.session import Message

_PAUSE = 0.2
_TURNS = 10  # of the loop


def begin(sandbox: Sandbox, manifest: TemplateManifest) -> None:
    """From now until it is ready, its time is over, or it does not run any more."""
    task = asyncio.create_task(_until_ready(sandbox, manifest), name=f"{sandbox.record.sandbox}: becomes ready")
    sandbox.becoming = task
    sandbox.when("over", task.cancel)


async def waited(sandbox: Sandbox) -> None:
    """Until it is ready, or nobody can say any more that it will be."""
    for _ in range(_TURNS):
        if not sandbox.booted:  # else its opening is just over, and whoever is called then has not been
            break
        await asyncio.sleep(0)
    if sandbox.becoming is not None and not sandbox.becoming.done():
        await asyncio.wait({sandbox.becoming})


async def _until_ready(sandbox: Sandbox, manifest: TemplateManifest) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(manifest.ready_seconds):
            while not await _is_ready(sandbox, manifest):  # noqa: ASYNC110 (a guest's own word)
                await asyncio.sleep(_PAUSE)


async def _is_ready(sandbox: Sandbox, manifest: TemplateManifest) -> bool:
    """By the template's own check, which is in no list of processes. One that is paused meanwhile is asked again."""
    try:
        stream = await sandbox.guest().open_unkept(
            [word.encode() for word in manifest.ready],
            manifest.user or None,
            cwd=manifest.cwd.encode() or None,
            seconds=manifest.ready_seconds,
        )
        async with stream:
            async for event in stream:
                if isinstance(event, Message) and isinstance(said := wire.decode(event.payload), wire.Exited):
                    return said.code == 0
    except SpaceError:
        pass
    return False
