"""HTTP/2 lets a client use a connection for every name that its certificate has."""

from typing import Any

from space_evaluate import inside
from space_evaluate.inside import Case
from space_evaluate.technique import Technique

TECHNIQUE = Technique(
    tries="On one connection of HTTP/2 ask for the allowed name, then for others at the same address.",
    claim="E3",
    defences=("authority check, ports agreement", "parser strictness: HTTP/2"),
    stopped_by=("authority_mismatch",),
    variants={"hidden": "hidden", "another allowed name": "second"},
    quick=True,
)


def attack(case: Case, what: Any) -> None:
    data = inside.PREFACE + inside.h2_request(case.ground.packages, f"/simple/{case.token}/")
    data += inside.h2_request(getattr(case.ground, what), f"/simple/{case.token}/", stream=3)
    case.tls(case.ground.packages, data, alpn=["h2"], until=lambda got: inside.h2_answered(got, 3))
