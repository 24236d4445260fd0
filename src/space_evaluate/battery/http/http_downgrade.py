"""Over plain http nobody proves who they are."""

from typing import Any

from space_evaluate import inside
from space_evaluate.inside import Case
from space_evaluate.technique import Technique

TECHNIQUE = Technique(
    tries="Ask an https name over http at port 80 and at its own port.",
    claim="E3",
    defences=("verdicts: every layer, every reading",),
    stopped_by=("port_not_allowed", "scheme_not_allowed", "hello_", "authority_"),
    variants={"80": 80, "443": 443},
)


def attack(case: Case, what: Any) -> None:
    case.connect(case.address(case.ground.packages), what, inside.request(case.ground.packages, f"/simple/{case.token}/"))
