"""A path that leads out of what is allowed, for whoever resolves dots."""

from typing import Any

from space_evaluate import inside
from space_evaluate.inside import Case
from space_evaluate.technique import Technique

TECHNIQUE = Technique(
    tries="Climb out of an allowed path by dots, encoded ones, and backslashes.",
    claim="E3",
    defences=("paths in one form",),
    stopped_by=("path_not_allowed", "path_invalid", "dots", "path"),
    variants={
        "/simple/../admin": "/simple/../admin",
        "/simple/%2e%2e/admin": "/simple/%2e%2e/admin",
        "/simple/..%2fadmin": "/simple/..%2fadmin",
        "/simple/%252e%252e/admin": "/simple/%252e%252e/admin",
        "/simple/..\\admin": "/simple/..\\admin",
        "/simple/..;/admin": "/simple/..;/admin",
        "/simple/..%3b/admin": "/simple/..%3b/admin",
        "/simple/.%2e/%2e./admin": "/simple/.%2e/%2e./admin",
        "/simple/a/../../admin": "/simple/a/../../admin",
        "/../simple/../admin": "/../simple/../admin",
        "/simple/..%5cadmin": "/simple/..%5cadmin",
        "/simple/..%c0%afadmin": "/simple/..%c0%afadmin",
        "//admin": "//admin",
        "/%2fadmin": "/%2fadmin",
    },
    quick=True,
)


def attack(case: Case, what: Any) -> None:
    case.tls(case.ground.packages, inside.request(case.ground.packages, what))
