"""A connection that was allowed when it began."""

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from space_evaluate import inside
from space_evaluate.inside import Case
from space_evaluate.technique import Technique

TECHNIQUE = Technique(
    tries="Hold a connection while the policy is taken away, and send the next request on it.",
    claim="E3",
    defences=("what a policy asks and limits holds for what is under way",),
    stopped_by=("policy", "name_not_allowed", "no_policy", "policy_changed", "guest:", "closed"),
    around=True,
    alone=True,
)


@contextmanager
def outside(guest: Any, attempt: Any) -> Iterator[None]:
    """On the host, while it runs."""
    timer = threading.Timer(2, lambda: guest.sandbox.set_policy(None))
    timer.start()
    yield
    timer.join()
    guest.policy = None
    guest.hold_to(attempt.policy)


def attack(case: Case, what: Any) -> None:
    names = case.ground
    with (
        socket.create_connection((case.address(names.packages), 443), 5) as plain,
        inside.trusting().wrap_socket(plain, server_hostname=names.packages) as sock,
    ):
        sock.settimeout(5)
        sock.sendall(inside.request(names.packages, f"/simple/{case.token}/"))
        case.did(f"first: {inside.drained(sock, inside.answered)[:40]!r}")
        time.sleep(4)
        try:
            sock.sendall(inside.request(names.packages, f"/files/{case.token}-late"))
            late = inside.drained(sock, inside.answered)
        except OSError as error:
            late = str(error).encode()
        case.did(f"after the change: {late[:60]!r}")
        if late.startswith(b"HTTP/1.1 200"):
            raise RuntimeError("the connection went on")
        case.refused("the connection was ended")
