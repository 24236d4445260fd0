"""A name that is allowed is not allowed at every port."""

from typing import Any

from space_evaluate import inside
from space_evaluate.inside import Case
from space_evaluate.technique import Technique

TECHNIQUE = Technique(
    tries="Connect to allowed names at ports of no rule.",
    claim="E3",
    defences=("verdicts: every layer, every reading",),
    stopped_by=("port_not_allowed", "scheme_not_allowed", "hello_", "authority_mismatch"),
    variants={
        "packages 80": ["packages", 80],
        "packages 22": ["packages", 22],
        "packages 8443": ["packages", 8443],
        "plain 443": ["plain", 443],
        "stream 443": ["stream", 443],
        "stream 2223": ["stream", 2223],
    },
    quick=True,
)


def attack(case: Case, what: Any) -> None:
    case.connect(case.address(getattr(case.ground, what[0])), what[1], inside.request(case.ground.hidden, f"/{case.token}"))
