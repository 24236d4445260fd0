"""What was made for one sandbox ends with it: grants of its own, and secrets that were written in its rules. Also after a restart."""

from __future__ import annotations

import asyncio
import logging

from space.control.e2b.lives import give_back
from space.control.services import Services
from space.model.errors import SpaceError

log = logging.getLogger("space.control.e2b")
_AGAIN_SECONDS = 10.0


async def keep_clean(services: Services) -> None:
    """Until cancelled. What cannot be forgotten now, because the broker is away, is tried again."""
    extras = services.e2b.extras
    while True:
        for sandbox, known in (await extras.over()).items():
            try:
                await services.link.wait_up()
                owner = await services.sandboxes.owner(sandbox)
                if owner is not None and not await give_back(services.credentials, owner, known.grants):
                    await asyncio.sleep(_AGAIN_SECONDS)
                    continue
                await extras.forget(sandbox)
            except SpaceError as fault:
                log.warning("what was made for sandbox %s is not forgotten yet: %s", sandbox, fault)
                await asyncio.sleep(_AGAIN_SECONDS)
