"""What is no TLS, where TLS is due, is passed on by whoever cannot read it."""

from typing import Any

from space_evaluate.inside import Case
from space_evaluate.technique import Technique

TECHNIQUE = Technique(
    tries="Send plain HTTP, SSH or noise to the TLS port of an allowed name.",
    claim="E3",
    defences=("parser strictness: ClientHello",),
    stopped_by=("hello_",),
    variants={
        "HTTP": "GET /TOKEN HTTP/1.1\r\nHost: hidden.example.net\r\n\r\n",
        "SSH": "SSH-2.0-TOKEN\r\n",
        "noise": "\x00\x01\x02TOKENTOKEN",
        "an alert": "\x15\x03\x01\x00\x02\x01\x00",
        "SSLv2": "\x80.\x01\x00\x02\x00\x15\x00\x00\x00\x10TOKENTOKENTOKEN!",
    },
    quick=True,
)


def attack(case: Case, what: Any) -> None:
    case.connect(case.address(case.ground.packages), 443, what.encode("latin-1").replace(b"TOKEN", case.token.encode()))
