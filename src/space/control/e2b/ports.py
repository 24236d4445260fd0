"""Ports of sandboxes other than the in-sandbox API's: the ingress serves them, in a process of its own.

A client of the API's own address that asks for one is handed over before its request comes here (`control/handover.py`).
"""

from __future__ import annotations

from starlette.types import Receive, Scope, Send

from space.control.e2b.faults import Away
from space.control.e2b.ids import to_e2b
from space.control.e2b.seat import Seat
from space.control.services import Services


async def relay(scope: Scope, receive: Receive, send: Send, services: Services, seat: Seat) -> None:
    """There is no ingress that would have taken it. Away."""
    raise Away(to_e2b(seat.sandbox), port=seat.port)
