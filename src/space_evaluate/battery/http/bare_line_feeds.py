"""One parser ends a line at a line feed, the other waits for both bytes."""

from typing import Any

from space_evaluate.inside import Case
from space_evaluate.technique import Technique

TECHNIQUE = Technique(
    tries="End lines of a head with a line feed, a carriage return, or other bytes, so that a field hides another.",
    claim="E3",
    defences=("parser strictness: HTTP/1.1; chunked and lengths",),
    stopped_by=("line_end", "field", "request_line"),
    variants={
        "all lines": "GET /simple/{token}/ HTTP/1.1\nHost: packages.example.com\n\n",
        "one line": "GET /simple/{token}/ HTTP/1.1\r\nHost: packages.example.com\nHost: hidden.example.net\r\n\r\n",
        "a carriage return": "GET /simple/{token}/ HTTP/1.1\r\nHost: packages.example.com\r\nX: a\rHost: hidden.example.net\r\n\r\n",
        "a vertical tab": "GET /simple/{token}/ HTTP/1.1\r\nHost: packages.example.com\x0bHost: hidden.example.net\r\n\r\n",
        "next line": "GET /simple/{token}/ HTTP/1.1\r\nHost: packages.example.com\x85\r\nX\x85: a\r\n\r\n",
    },
    quick=True,
)


def attack(case: Case, what: Any) -> None:
    case.tls(case.ground.packages, what.replace("{token}", case.token).encode("latin-1"))
