"""An address that was given for a name that is allowed no more."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from space_evaluate import inside
from space_evaluate.inside import Case
from space_evaluate.technique import Technique

TECHNIQUE = Technique(
    tries="Keep the address of a name, have the policy taken away, and use it.",
    claim="E3",
    defences=("verdicts: every layer, every reading",),
    stopped_by=("name_not_allowed", "no_policy", "unknown_address", "policy"),
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
    address = case.address(case.ground.packages)
    case.did(f"has {address}")
    time.sleep(4)
    case.tls(address, inside.request(case.ground.packages, f"/simple/{case.token}/"), sni=case.ground.packages)
