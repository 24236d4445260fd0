"""A credential for one host, sent to another, is given away."""

from typing import Any

from space_evaluate.inside import Case
from space_evaluate.technique import HOST_SECRET, Technique

TECHNIQUE = Technique(
    tries="Ask hosts without a grant, with the granted host's name in Host, in the URL, in forwarded fields.",
    claim="C1",
    defences=("whose a grant is and what it permits", "credentials: by an explicit rule alone"),
    stopped_by=("guest:", "authority_", "target_form"),
    goals=(HOST_SECRET,),
    variants={
        "plain": ["/echo"],
        "Host": ["/echo", "host: x"],
        "forwarded": ["/echo", "X-Forwarded-Host: api.example.com"],
        "origin": ["/echo", "Origin: https://api.example.com"],
    },
    quick=True,
)


def attack(case: Case, what: Any) -> None:
    got = case.http(
        case.ground.open,
        what[0],
        what[1:],
        host=what[0][8:23] if what[0].startswith("https") else "api.example.com" if "host" in what else case.ground.open,
    )
    case.refused(got[:40].decode("latin-1"))
