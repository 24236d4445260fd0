"""A server that speaks HTTP/1.1 behind the gateway would take a line end in a value for one."""

from typing import Any

from space_evaluate import inside
from space_evaluate.inside import Case
from space_evaluate.technique import Technique

TECHNIQUE = Technique(
    tries="Send fields with line ends, capitals, spaces, NUL, or the framing of HTTP/1.1.",
    claim="E3",
    defences=("parser strictness: HTTP/2",),
    stopped_by=("field", "http2_", "head", "connection", "transfer_encoding", "host", "content_length"),
    variants={
        "a line end": ["x", "a\r\nhost: hidden.example.net"],
        "a line end in a name": ["x\r\nhost", "hidden.example.net"],
        "capitals": ["Host", "hidden.example.net"],
        "a space": ["x y", "z"],
        "a NUL": ["x", "a\x00b"],
        "a coding": ["transfer-encoding", "chunked"],
        "connection": ["connection", "close"],
        "a colon": ["x:y", "z"],
        "no name": ["", "z"],
        "te": ["te", "gzip"],
    },
    quick=True,
)


def attack(case: Case, what: Any) -> None:
    case.tls(
        case.ground.packages,
        inside.PREFACE + inside.h2_request(case.ground.packages, f"/simple/{case.token}/", [tuple(what)]),
        alpn=["h2"],
        until=inside.h2_answered,
    )
