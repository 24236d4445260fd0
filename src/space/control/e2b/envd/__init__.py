"""The in-sandbox API (E2B's daemon in the guest, on port 49983), answered on the host's side."""

from __future__ import annotations

from starlette.types import Receive, Scope, Send

from space.control import answers
from space.control.e2b.faults import NotHere
from space.control.e2b.seat import Seat
from space.control.services import Services


async def serve(scope: Scope, receive: Receive, send: Send, services: Services, seat: Seat) -> None:
    """Answer a request that was let in. NotHere, or what the guest is at fault for."""
    if scope["path"] != "/health":
        raise NotHere(f"the in-sandbox API has nothing at {scope['path'][:200]!r}")
    await answers.nothing().send(send)
