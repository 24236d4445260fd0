"""Other classes than the internet's have their own servers and their own answers."""

from typing import Any

from space_evaluate import inside
from space_evaluate.inside import Case
from space_evaluate.technique import Technique

TECHNIQUE = Technique(
    tries="Ask for an allowed name in the classes CHAOS, HESIOD, NONE and ANY.",
    claim="E3",
    defences=("DNS strictness",),
    stopped_by=("dns_malformed", "dns_type", "dns_class"),
    variants={"CHAOS": 3, "HESIOD": 4, "NONE": 254, "ANY": 255},
)


def attack(case: Case, what: Any) -> None:
    case.send_query(inside.question(case.ground.packages)[:-2] + what.to_bytes(2, "big"))
