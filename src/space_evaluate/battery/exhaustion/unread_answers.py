"""Who asks and does not read makes the other side keep."""

import contextlib
import socket
from typing import Any

from space_evaluate import inside
from space_evaluate.inside import Case
from space_evaluate.technique import Technique

TECHNIQUE = Technique(
    tries="Ask for answers by the thousand on one connection, and read none.",
    claim="E3",
    defences=("limits",),
    stopped_by=("guest:",),
    alone=True,
    seconds=60.0,
)


def attack(case: Case, what: Any) -> None:
    names = case.ground
    with (
        socket.create_connection((case.address(names.packages), 443), 5) as plain,
        inside.trusting().wrap_socket(plain, server_hostname=names.packages) as sock,
    ):
        sock.settimeout(4)
        sent = 0
        with contextlib.suppress(OSError):
            for _ in range(5000):
                sent += 1
                sock.sendall(inside.request(names.packages, "/simple/" + "x" * 3000))
        case.did(f"sent {sent} requests, read no answer")
    got = case.http(names.packages, f"/simple/{case.token}/", seconds=15)
    if not got.startswith(b"HTTP/1.1 200"):
        raise RuntimeError("a legitimate request waits")
    case.refused("legitimate requests go on")
