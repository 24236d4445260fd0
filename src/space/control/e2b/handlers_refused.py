"""What E2B has and this face has not: an answer that says so."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from space.control.call import Call
from space.control.e2b.faults import NotHere
from space.control.route import Sendable
from space.control.services import Services


def refusing(reason: str) -> Callable[[Call, Services], Awaitable[Sendable]]:
    """A handler that says why not."""

    async def refuse(call: Call, services: Services) -> Sendable:
        raise NotHere(f"not supported by this server: {reason}")

    return refuse
