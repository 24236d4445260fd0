"""Each connection costs a place."""

import socket
import time
from typing import Any

from space_evaluate.inside import Case
from space_evaluate.technique import Technique

TECHNIQUE = Technique(
    tries="Open hundreds of connections to an allowed name, and hold them.",
    claim="E3",
    defences=("limits",),
    stopped_by=("too_many", "too_many_connections", "too_many_handshakes", "connections", "guest:"),
    alone=True,
    seconds=60.0,
)


def attack(case: Case, what: Any) -> None:
    held, refused = [], 0
    address = case.address(case.ground.packages)
    for _ in range(700):
        try:
            held.append(socket.create_connection((address, 443), 2))
        except OSError:
            refused += 1
            if refused > 20:
                break
    case.did(f"holds {len(held)}, {refused} were refused")
    time.sleep(1)
