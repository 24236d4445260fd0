"""Servers behind proxies believe a field over the path."""

from typing import Any

from space_evaluate import inside
from space_evaluate.inside import Case
from space_evaluate.technique import Technique

TECHNIQUE = Technique(
    tries="Name another path in a field, in many spellings.",
    claim="E3",
    defences=("what is judged is what goes", "spellings"),
    stopped_by=("path_override",),
    variants={
        "X-Original-URL": "X-Original-URL: /admin",
        "X-Rewrite-URL": "X-Rewrite-URL: /admin",
        "X_Original_URL": "X_Original_URL: /admin",
        "X-Forwarded-Uri": "X-Forwarded-Uri: /admin",
        "Destination": "Destination: https://hidden.example.net/x",
        "X-Forwarded-Path": "X-Forwarded-Path: /admin",
        "X-Forwarded-Prefix": "X-Forwarded-Prefix: /admin",
    },
)


def attack(case: Case, what: Any) -> None:
    case.tls(case.ground.packages, inside.request(case.ground.packages, f"/simple/{case.token}/", [what]))
