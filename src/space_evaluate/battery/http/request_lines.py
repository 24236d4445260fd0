"""The first line has three parts, and parsers count them differently."""

from typing import Any

from space_evaluate.inside import Case
from space_evaluate.technique import Technique

TECHNIQUE = Technique(
    tries="Send first lines with more spaces, tabs, other methods' letters, or another version.",
    claim="E3",
    defences=("parser strictness: HTTP/1.1; chunked and lengths",),
    stopped_by=("request_line", "version", "target_form", "method", "field"),
    variants={
        "two spaces": "GET  /simple/{token}/ HTTP/1.1",
        "a tab": "GET\t/simple/{token}/\tHTTP/1.1",
        "HTTP/1.0": "GET /simple/{token}/ HTTP/1.0",
        "HTTP/0.9": "GET /admin",
        "HTTP/2.0": "GET /simple/ HTTP/2.0",
        "HTTP/1.10": "GET /simple/ HTTP/1.10",
        "lower case": "get /simple/ http/1.1",
        "four parts": "GET /simple/ /admin HTTP/1.1",
        "a line before": "\r\n\r\n\nGET /admin HTTP/1.1",
        "a quote": 'G"ET /simple/ HTTP/1.1',
    },
)


def attack(case: Case, what: Any) -> None:
    case.tls(case.ground.packages, what.replace("{token}", case.token).encode("latin-1") + b"\r\nHost: packages.example.com\r\n\r\n")
