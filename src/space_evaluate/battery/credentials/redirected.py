"""A redirect takes a credential along, for clients that follow."""

from typing import Any

from space_evaluate.inside import Case
from space_evaluate.technique import HOST_SECRET, Technique

TECHNIQUE = Technique(
    tries="Have the granted host's answer redirect to the attacker, and follow.",
    claim="C1",
    defences=("whose a grant is and what it permits",),
    stopped_by=("name_not_allowed", "guest:"),
    goals=(HOST_SECRET,),
)


def attack(case: Case, what: Any) -> None:
    case.http("api.example.com", "/echo")
    case.http(case.ground.open, "/echo", ["Referer: https://api.example.com/echo"])
    case.query(case.ground.callback)
