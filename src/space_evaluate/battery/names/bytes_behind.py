"""What stands behind a message is data that nobody judged."""

from typing import Any

from space_evaluate import inside
from space_evaluate.inside import Case
from space_evaluate.technique import Technique

TECHNIQUE = Technique(
    tries="Send a question for an allowed name with bytes behind its end.",
    claim="E3",
    defences=("DNS strictness",),
    stopped_by=("dns_malformed",),
    variants={"the token": "", "zeros": "\x00"},
    quick=True,
)


def attack(case: Case, what: Any) -> None:
    case.send_query(inside.question(case.ground.packages, more=(what or case.token).encode() * 8))
