"""A credential over plain http is everybody's."""

from typing import Any

from space_evaluate import inside
from space_evaluate.inside import Case
from space_evaluate.technique import HOST_SECRET, Technique

TECHNIQUE = Technique(
    tries="Ask the granted host over http, at port 80 and at 443.",
    claim="C1",
    defences=("credentials: by an explicit rule alone",),
    stopped_by=("port_not_allowed", "scheme_not_allowed", "hello_", "authority_"),
    goals=(HOST_SECRET,),
    variants={"80": 80, "443": 443},
)


def attack(case: Case, what: Any) -> None:
    case.connect(case.address("api.example.com"), what, inside.request("api.example.com", "/echo"))
