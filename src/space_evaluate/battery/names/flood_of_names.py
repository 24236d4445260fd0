"""Each name costs the gateway memory, and each question an answer."""

import socket
import time
from typing import Any

from space_evaluate import inside
from space_evaluate.inside import Case
from space_evaluate.technique import Technique

TECHNIQUE = Technique(
    tries="Ask for thousands of names below a wildcard at once: the budget ends it, and a legitimate name is still answered.",
    claim="E3",
    defences=("limits",),
    stopped_by=("dns_rate", "dns_names", "too_many_names", "dns_budget"),
    variants={"below a wildcard": "{wild}", "of no rule": "flood.example.net"},
    seconds=40.0,
    alone=True,
)


def attack(case: Case, what: Any) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        for number in range(3000):
            sock.sendto(inside.question(f"{case.token[:6]}{number}.{what}".format(wild=case.ground.wild)), (case.ground.gateway, 53))
    case.did("sent 3000 questions")
    time.sleep(2.5)
