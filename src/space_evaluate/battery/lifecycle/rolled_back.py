"""An instant that was kept had another policy."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from space_evaluate import inside
from space_evaluate.inside import Case
from space_evaluate.technique import Technique

TECHNIQUE = Technique(
    tries="Be taken back to an instant at which a name was allowed, after it is allowed no more.",
    claim="G10",
    defences=("policy generation at dial",),
    stopped_by=("name_not_allowed", "no_policy", "unknown_address", "policy", "guest:"),
    around=True,
    alone=True,
    seconds=60.0,
)


@contextmanager
def outside(guest: Any, attempt: Any) -> Iterator[None]:
    """On the host, while it runs."""

    def change() -> None:
        kept = guest.sandbox.checkpoint()
        guest.sandbox.set_policy(None)
        guest.sandbox.drop_checkpoint(kept)

    timer = threading.Timer(2, change)
    timer.start()
    yield
    timer.join()
    guest.policy = None
    guest.hold_to(attempt.policy)


def attack(case: Case, what: Any) -> None:
    address = case.address(case.ground.packages)
    case.did(f"has {address}")
    time.sleep(5)
    case.tls(address, inside.request(case.ground.packages, f"/files/{case.token}-late"), sni=case.ground.packages)
    case.refused("the policy of now holds")
