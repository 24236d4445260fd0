"""Who trusts the gateway trusts whatever stands behind it: the server of an allowed name has to be that server."""

from typing import Any

from space_evaluate.inside import Case
from space_evaluate.technique import CALLBACK, Technique

TECHNIQUE = Technique(
    tries="Send a request to an allowed name whose server shows somebody else's certificate.",
    claim="E3",
    defences=("resumption and tickets; verification of upstreams",),
    stopped_by=("upstream_certificate", "upstream_"),
    goals=(CALLBACK,),
    variants={"GET": "GET", "POST": "POST"},
    quick=True,
)


def attack(case: Case, what: Any) -> None:
    got = case.http(case.ground.false, f"/{case.token}", method=what)
    case.did(got[:60].decode("latin-1"))
