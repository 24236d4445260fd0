"""A sandbox that stands still holds what it had, and may have it when it goes on."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from space_evaluate import inside
from space_evaluate.inside import Case
from space_evaluate.technique import Technique

TECHNIQUE = Technique(
    tries="Hold a connection, be paused, have the policy taken away, be resumed, and send on.",
    claim="G10",
    defences=("policy generation at dial",),
    stopped_by=("guest:", "policy", "name_not_allowed", "no_policy"),
    around=True,
    alone=True,
    seconds=40.0,
)


@contextmanager
def outside(guest: Any, attempt: Any) -> Iterator[None]:
    """On the host, while it runs."""

    def change() -> None:
        guest.sandbox.pause()
        guest.sandbox.set_policy(None)
        guest.sandbox.resume()

    timer = threading.Timer(2, change)
    timer.start()
    yield
    timer.join()
    guest.policy = None
    guest.hold_to(attempt.policy)


def attack(case: Case, what: Any) -> None:
    names = case.ground
    address = case.address(names.packages)
    case.did(f"has {address}")
    time.sleep(6)
    case.tls(address, inside.request(names.packages, f"/files/{case.token}-late"), sni=names.packages)
    case.refused("what it had is not allowed any more")
