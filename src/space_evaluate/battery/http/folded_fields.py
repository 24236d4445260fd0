"""A line that begins with a space belongs to the one before it, for parsers that are old."""

from typing import Any

from space_evaluate.inside import Case
from space_evaluate.technique import Technique

TECHNIQUE = Technique(
    tries="Fold a Host, a coding or an unknown field over two lines.",
    claim="E3",
    defences=("parser strictness: HTTP/1.1; chunked and lengths",),
    stopped_by=("field", "host"),
    variants={
        "a host": "Host: packages.example.com\r\n .hidden.example.net",
        "a field": "Host: packages.example.com\r\nX: a\r\n\tb",
        "the first line": " Host: hidden.example.net\r\nHost: packages.example.com",
    },
)


def attack(case: Case, what: Any) -> None:
    case.tls(case.ground.packages, f"GET /simple/{case.token}/ HTTP/1.1\r\n{what}\r\n\r\n".encode())
