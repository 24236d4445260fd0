"""An opaque stream says nothing of requests, and has no next one to judge."""

import contextlib
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
    tries="Hold an opaque stream while its rule is taken away, and send on.",
    claim="E3",
    defences=("what a policy asks and limits holds for what is under way",),
    stopped_by=("guest:", "policy", "name_not_allowed", "no_policy"),
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
    with socket.create_connection((case.address(case.ground.stream), 2222), 5) as sock:
        sock.settimeout(3)
        sock.sendall(b"GET /first HTTP/1.1\r\nHost: stream.example.com\r\n\r\n")
        case.did(f"first: {inside.drained(sock, inside.answered)[:40]!r}")
        time.sleep(4)
        late = b""
        with contextlib.suppress(OSError):
            sock.sendall(f"GET /{case.token}-late HTTP/1.1\r\nHost: stream.example.com\r\n\r\n".encode())
            late = inside.drained(sock, inside.answered)
        case.did(f"after the change: {late[:40]!r}")
        if late:
            raise RuntimeError("the stream went on")
        case.refused("the stream was ended")
