"""Bytes below a space end strings, lines and arguments elsewhere."""

from typing import Any

from space_evaluate.inside import Case
from space_evaluate.technique import Technique

TECHNIQUE = Technique(
    tries="Put control bytes into names and values of fields.",
    claim="E3",
    defences=("parser strictness: HTTP/1.1; chunked and lengths",),
    stopped_by=("field",),
    variants={
        "NUL": "X: a\x00b",
        "bell": "X: a\x07",
        "in a name": "X\x01: a",
        "delete": "X: a\x7f",
        "no name": ": a",
        "no colon": "hidden.example.net",
        "a slash in a name": "X/Y: a",
    },
)


def attack(case: Case, what: Any) -> None:
    case.tls(case.ground.packages, f"GET /simple/{case.token}/ HTTP/1.1\r\nHost: packages.example.com\r\n{what}\r\n\r\n".encode("latin-1"))
