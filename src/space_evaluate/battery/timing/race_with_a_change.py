"""Between two policies there may be a moment without any."""

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
    tries="Ask without pause for a name that no policy allows, while the policy is changed again and again.",
    claim="E3",
    defences=("policy generation at dial", "verdicts: every layer, every reading"),
    stopped_by=("name_not_allowed", "no_policy", "authority_mismatch", "sni_mismatch"),
    around=True,
    alone=True,
    seconds=30.0,
)


@contextmanager
def outside(guest: Any, attempt: Any) -> Iterator[None]:
    """On the host, while it runs."""
    ended = threading.Event()

    def change() -> None:
        while not ended.wait(0.2):
            guest.sandbox.set_policy(None)
            guest.sandbox.set_policy(guest.place.policy("narrow"))

    thread = threading.Thread(target=change)
    thread.start()
    yield
    ended.set()
    thread.join()
    guest.policy = None
    guest.hold_to(attempt.policy)


def attack(case: Case, what: Any) -> None:
    until, tries = time.monotonic() + 6, 0
    while time.monotonic() < until:
        answer = inside.ask(inside.question(case.ground.callback), case.ground.gateway, seconds=0.5)
        tries += 1
        if answer is not None and answer["addresses"]:
            case.tls(answer["addresses"][0], b"x", sni=case.ground.callback)
        with contextlib.suppress(OSError):
            socket.create_connection((case.ground.callback_at, 443), 0.3).close()
    case.did(f"asked {tries} times")
