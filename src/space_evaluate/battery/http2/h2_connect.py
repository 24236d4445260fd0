"""In HTTP/2 a tunnel is a stream."""

from typing import Any

from space_evaluate import inside
from space_evaluate.inside import Case
from space_evaluate.technique import Technique

TECHNIQUE = Technique(
    tries="Ask for a tunnel by CONNECT, plain and extended.",
    claim="E3",
    defences=("parser strictness: HTTP/2",),
    stopped_by=("method", "connect", "http2_", "pseudo", "head", "trace", "authority", "field"),
    variants={
        "plain": [[":authority", "callback.example.net:443"]],
        "to itself": [[":authority", "packages.example.com:443"]],
        "extended": [[":scheme", "https"], [":path", "/"], [":authority", "packages.example.com"], [":protocol", "websocket"]],
    },
)


def attack(case: Case, what: Any) -> None:
    case.tls(
        case.ground.packages,
        inside.PREFACE + inside.h2_frame(inside.HEADERS, inside.h2_fields([(":method", "CONNECT"), *map(tuple, what)]), flags=4, stream=1),
        alpn=["h2"],
        until=inside.h2_answered,
    )
