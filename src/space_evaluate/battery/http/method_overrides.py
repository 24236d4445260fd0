"""Frameworks believe a field, or a parameter, over the method."""

from typing import Any

from space_evaluate import inside
from space_evaluate.inside import Case
from space_evaluate.technique import Technique

TECHNIQUE = Technique(
    tries="Name another method in a field or in the query, in many spellings.",
    claim="E3",
    defences=("what is judged is what goes", "spellings"),
    stopped_by=("method_override",),
    variants={
        "field": ["", "X-HTTP-Method-Override: DELETE"],
        "underscores": ["", "X_HTTP_Method_Override: DELETE"],
        "another field": ["", "X-Method-Override: PUT"],
        "a third": ["", "X-HTTP-Method: PUT"],
        "query": ["?_method=DELETE"],
        "encoded": ["?%5Fmethod=DELETE"],
        "a dollar": ["?$httpMethod=DELETE"],
        "mixed": ["", "x-hTTp_MeThod-oveRRide: DELETE"],
    },
    quick=True,
)


def attack(case: Case, what: Any) -> None:
    case.tls(case.ground.packages, inside.request(case.ground.packages, f"/simple/{case.token}/{what[0]}", what[1:]))
