"""Ports of sandboxes other than the in-sandbox API's: the ingress serves them, in a process of its own."""

from __future__ import annotations

from starlette.types import Receive, Scope, Send

from space.control.e2b.faults import Away
from space.control.e2b.ids import to_e2b
from space.control.e2b.seat import Seat
from space.control.services import Services


async def relay(scope: Scope, receive: Receive, send: Send, services: Services, seat: Seat) -> None:
    """Hand a request over to the ingress. Away."""
    raise Away(to_e2b(seat.sandbox), port=seat.port)
