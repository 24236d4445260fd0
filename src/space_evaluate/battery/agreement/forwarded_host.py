"""Frameworks believe fields of proxies over Host."""

from typing import Any

from space_evaluate.inside import Case
from space_evaluate.technique import Technique

TECHNIQUE = Technique(
    tries="Name another host in fields that only a proxy would set, in several spellings.",
    claim="E3",
    defences=("what is judged is what goes",),
    stopped_by=("guest:",),
    variants={
        "X-Forwarded-Host": "X-Forwarded-Host",
        "X_Forwarded_Host": "X_Forwarded_Host",
        "Forwarded": "Forwarded",
        "X-Host": "X-Host",
        "X-Forwarded-Server": "X-Forwarded-Server",
        "X-Original-Host": "X-Original-Host",
        "X-HTTP-Host-Override": "X-HTTP-Host-Override",
    },
    quick=True,
)


def attack(case: Case, what: Any) -> None:
    got = case.http(case.ground.open, f"/echo?{case.token}", [f"{what}: {case.ground.hidden}"])
    if not got.startswith(b"HTTP/1.1 200 "):
        case.refused(got[:60].decode("latin-1"))
    elif case.ground.hidden.encode() not in got:
        case.refused("the field went no further")
    else:
        raise RuntimeError(f"{what} was passed on")
