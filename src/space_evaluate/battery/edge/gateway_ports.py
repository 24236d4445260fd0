"""Whatever listens on the gateway's address is a page for the guest."""

import contextlib
import socket
from typing import Any

from space_evaluate.inside import Case
from space_evaluate.technique import BOTH, Technique

TECHNIQUE = Technique(
    tries="Connect to every well-known port of the gateway's address, and to the transparent listener's own.",
    claim="G3",
    defences=("edge filter and source check",),
    stopped_by=("gateway_port", "guest_tcp"),
    policies=BOTH,
    variants={"1 to 200": [1, 200], "8000 to 8100": [8000, 8100], "the listener": [15001, 15002]},
    seconds=60.0,
)


def attack(case: Case, what: Any) -> None:
    ground = case.ground

    for port in range(*what):
        if port != 53:
            with contextlib.suppress(OSError):
                socket.create_connection((ground.gateway, port), 1).close()
                raise RuntimeError(f"port {port} answered")
    case.did(f"tried ports {what}")
