"""A handshake that never ends holds a place."""

import socket
from typing import Any

from space_evaluate.inside import Case
from space_evaluate.technique import Technique

TECHNIQUE = Technique(
    tries="Open handshakes and stop in the middle of the hello; legitimate ones go on.",
    claim="E3",
    defences=("limits",),
    stopped_by=("hello", "handshake", "handshake_timeout", "timeout", "idle", "too_many_handshakes", "guest:"),
)


def attack(case: Case, what: Any) -> None:
    held = []
    for at in range(40):
        sock = socket.create_connection((case.address(case.ground.packages), 443), 5)
        sock.sendall(b"\x16\3\1\2\0\1\0\1\xfc" + bytes(at))
        held.append(sock)
    case.did(f"holds {len(held)} handshakes")
    got = case.http(case.ground.packages, f"/simple/{case.token}/", seconds=10)
    if not got.startswith(b"HTTP/1.1 200"):
        raise RuntimeError("a legitimate one waits")
    case.refused("others go on beside them")
