"""DNS does more than answer: it updates zones and announces changes."""

from typing import Any

from space_evaluate import inside
from space_evaluate.inside import Case
from space_evaluate.technique import Technique

TECHNIQUE = Technique(
    tries="Send an update, a notification, a status request and an inverse query for an allowed name.",
    claim="E3",
    defences=("DNS strictness",),
    stopped_by=("dns_malformed", "dns_opcode", "guest:"),
    variants={"update": 5, "notify": 4, "status": 2, "inverse": 1, "stateful": 6},
)


def attack(case: Case, what: Any) -> None:
    answer = case.send_query(inside.question(case.ground.packages, flags=what << 11), seconds=2)
    if answer is None or answer["code"]:
        case.refused(inside.told(answer))
