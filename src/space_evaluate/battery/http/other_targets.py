"""A target may be a path, a URL, a host or an asterisk."""

from typing import Any

from space_evaluate.inside import Case
from space_evaluate.technique import Technique

TECHNIQUE = Technique(
    tries="Ask with targets that are none, or name a place elsewhere.",
    claim="E3",
    defences=("parser strictness: HTTP/1.1; chunked and lengths",),
    stopped_by=("target_form", "path_invalid", "path_not_allowed", "method_not_allowed", "request_line"),
    variants={
        "asterisk": "OPTIONS *",
        "a host": "GET hidden.example.net",
        "nothing": "GET ",
        "a query alone": "GET ?x",
        "a fragment": "GET /simple/#/../admin",
        "a scheme alone": "GET https:",
        "a file": "GET file:///etc/passwd",
        "a NUL": "GET /simple/\x00/../../admin",
    },
)


def attack(case: Case, what: Any) -> None:
    case.tls(case.ground.packages, f"{what} HTTP/1.1\r\nHost: packages.example.com\r\n\r\n".encode("latin-1"))
