"""Where HTTP/2 becomes HTTP/1.1, a path with a space becomes two parts of a line."""

from typing import Any

from space_evaluate import inside
from space_evaluate.inside import Case
from space_evaluate.technique import Technique

TECHNIQUE = Technique(
    tries="Send paths with spaces, line ends, a whole request, a URL, or none.",
    claim="E3",
    defences=("parser strictness: HTTP/2",),
    stopped_by=("path", "path_", "http2_", "field", "head", "target_form", "request_line"),
    variants={
        "a space": "/simple/ HTTP/1.1",
        "a line end": "/simple/ HTTP/1.1\r\nHost: hidden.example.net\r\nX: y",
        "a URL": "https://hidden.example.net/simple/",
        "empty": "",
        "no slash": "simple/",
        "asterisk": "*",
        "a fragment": "/simple/#x",
        "a tab": "/simple/\tx",
    },
)


def attack(case: Case, what: Any) -> None:
    case.tls(case.ground.packages, inside.PREFACE + inside.h2_request(case.ground.packages, what), alpn=["h2"], until=inside.h2_answered)
