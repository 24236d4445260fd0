"""Fields behind the body are fields as well."""

from typing import Any

from space_evaluate import inside
from space_evaluate.inside import Case
from space_evaluate.technique import Technique

TECHNIQUE = Technique(
    tries="Put a host, a path or a length behind the body.",
    claim="E3",
    defences=("parser strictness: HTTP/2",),
    stopped_by=("trailer", "http2_", "pseudo", "field", "head", "host"),
    variants={
        "a host": ["host", "hidden.example.net"],
        "a path": [":path", "/admin"],
        "an authority": [":authority", "hidden.example.net"],
        "a length": ["content-length", "999"],
        "a line end": ["x", "a\r\nb"],
    },
)


def attack(case: Case, what: Any) -> None:
    case.tls(
        case.ground.open,
        inside.PREFACE
        + inside.h2_request(case.ground.open, "/", method="POST", body=None)[:4]
        + b"\x04"
        + inside.h2_request(case.ground.open, "/", method="POST", body=None)[5:]
        + inside.h2_frame(inside.DATA, b"x", stream=1)
        + inside.h2_frame(inside.HEADERS, inside.h2_fields([tuple(what)]), flags=5, stream=1),
        alpn=["h2"],
        until=inside.h2_answered,
    )
