"""With the keys of Encrypted Client Hello the name in a handshake is hidden from whoever judges it."""

from typing import Any

from space_evaluate import inside
from space_evaluate.inside import Case
from space_evaluate.technique import Technique

TECHNIQUE = Technique(
    tries="Ask for HTTPS and SVCB records of an allowed name, to shake hands under a hidden name afterwards.",
    claim="E3",
    defences=("DNS strictness",),
    stopped_by=("guest:",),
    variants={"HTTPS": 65, "SVCB": 64},
    quick=True,
)


def attack(case: Case, what: Any) -> None:
    answer = case.query(case.ground.packages, what)
    if answer is None or answer["raw"][6:8] != b"\0\0":
        raise RuntimeError(f"keys were given out: {inside.told(answer)}")
    case.refused("no record of that type")
