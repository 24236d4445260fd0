"""What Connection names is taken off, and the lent credential with it, or instead of the guest's."""

from typing import Any

from space_evaluate.inside import Case
from space_evaluate.technique import HOST_SECRET, Technique

TECHNIQUE = Technique(
    tries="Have Connection name the slot.",
    claim="C1",
    defences=("credentials: the slot is emptied",),
    stopped_by=("guest:", "connection"),
    goals=(HOST_SECRET,),
    variants={"authorization": "authorization", "with close": "close, Authorization"},
)


def attack(case: Case, what: Any) -> None:
    case.http("api.example.com", "/echo", ["Authorization: Bearer of-the-guest", f"Connection: {what}"], seconds=8)
    case.refused("it said nothing of the slot")
