"""What servers read in two ways must be allowed in both."""

from typing import Any

from space_evaluate import inside
from space_evaluate.inside import Case
from space_evaluate.technique import Technique

TECHNIQUE = Technique(
    tries="Ask for paths that are allowed in one reading: doubled slashes, encoded slashes, semicolons, a NUL, letters of UTF-8.",
    claim="E3",
    defences=("paths in one form", "verdicts: every layer, every reading"),
    stopped_by=("path_not_allowed", "path_invalid", "path"),
    variants={
        "/simple%2f..%2fadmin": "/simple%2f..%2fadmin",
        "/files%2F": "/files%2F",
        "/simple;/admin": "/simple;/admin",
        "/admin;/simple/": "/admin;/simple/",
        "/simple%00/": "/simple%00/",
        "/SIMPLE/": "/SIMPLE/",
        "/%73imple/%00": "/%73imple/%00",
        "/simple%09/..": "/simple%09/..",
        "/simple%2e/x": "/simple%2e/x",
        "/simple/%": "/simple/%",
    },
)


def attack(case: Case, what: Any) -> None:
    case.tls(case.ground.packages, inside.request(case.ground.packages, what))
