"""A name that answers with a public address first, and with the host's a moment later."""

from typing import Any

from space_evaluate.inside import Case
from space_evaluate.technique import HOST_SECRET, Technique

TECHNIQUE = Technique(
    tries="Ask for an allowed name whose zone changes its mind between the check and the connection.",
    claim="E3",
    defences=("dial check: vet", "dial check: peer"),
    stopped_by=("address_",),
    goals=(HOST_SECRET,),
)


def attack(case: Case, what: Any) -> None:
    for _ in range(4):
        case.http(case.ground.bad["mixed"], f"/{case.token}", seconds=3)
    case.http(case.ground.bad["inner"], f"/{case.token}", seconds=3)
