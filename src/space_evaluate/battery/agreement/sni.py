"""The same by the name in the handshake."""

from typing import Any

from space_evaluate import inside
from space_evaluate.inside import Case
from space_evaluate.technique import Technique

TECHNIQUE = Technique(
    tries="At the address of an allowed name shake hands as another one: hidden, allowed too, with a right Host, or nameless.",
    claim="E3",
    defences=("SNI check",),
    stopped_by=("sni_mismatch", "sni_missing"),
    variants={
        "hidden": ["hidden", "hidden"],
        "hidden, with a right Host": ["hidden", "packages"],
        "another allowed name": ["second", "second"],
        "none": [None, "hidden"],
    },
    source="published evaluation of sandboxes' egress: domain fronting behind one CDN",
    quick=True,
)


def attack(case: Case, what: Any) -> None:
    sni, host = what
    names = case.ground
    data = inside.request(getattr(names, host), f"/simple/{case.token}/")
    case.tls(names.packages, data, sni=getattr(names, sni) if sni else None)
