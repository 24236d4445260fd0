"""What an allowed name is asked for may be more than its address."""

from typing import Any

from space_evaluate.inside import Case
from space_evaluate.technique import Technique

TECHNIQUE = Technique(
    tries="Ask for types of an allowed name that would be looked up elsewhere, or list the zone.",
    claim="E3",
    defences=("DNS strictness",),
    stopped_by=("dns_type",),
    variants={"NULL": 10, "PTR": 12, "AXFR": 252, "IXFR": 251, "ANY": 255, "MAILA": 254},
    quick=True,
)


def attack(case: Case, what: Any) -> None:
    case.query(case.ground.packages, what)
