"""Below a wildcard every label is allowed, and a resolver that is asked for each is a way out for data."""

from typing import Any

from space_evaluate.inside import Case
from space_evaluate.technique import Technique

TECHNIQUE = Technique(
    tries="Ask for many names below an allowed wildcard, with data in their labels, and make no request: no question may leave.",
    claim="E3",
    defences=("verdicts: every layer, every reading",),
    stopped_by=("guest:",),
    quick=True,
    blank="names are answered from a table; the gateway has no code that would ask a resolver for a query",
)


def attack(case: Case, what: Any) -> None:
    for number in range(20):
        case.query(f"{case.token}{number}.{case.ground.wild}")
    case.refused("answered by the gateway itself")
