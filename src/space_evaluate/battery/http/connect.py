"""A proxy that takes CONNECT is a way to anywhere."""

from typing import Any

from space_evaluate.inside import Case
from space_evaluate.technique import Technique

TECHNIQUE = Technique(
    tries="Ask for a tunnel to the attacker, to the host, or to the allowed name itself.",
    claim="E3",
    defences=("parser strictness: HTTP/1.1; chunked and lengths",),
    stopped_by=("target_form", "method", "connect", "trace"),
    variants={
        "the attacker": "CONNECT callback.example.net:443",
        "the host": "CONNECT 127.0.0.1:22",
        "itself": "CONNECT packages.example.com:443",
        "in lower case": "connect callback.example.net:443",
    },
    quick=True,
)


def attack(case: Case, what: Any) -> None:
    case.tls(case.ground.packages, f"{what} HTTP/1.1\r\nHost: packages.example.com\r\n\r\n".encode())
