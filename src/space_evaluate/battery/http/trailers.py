"""Fields behind the body are read by some as if they stood before it."""

from typing import Any

from space_evaluate import inside
from space_evaluate.inside import Case
from space_evaluate.technique import Technique

TECHNIQUE = Technique(
    tries="Put a host, a length, a credential or a method behind the body in chunks.",
    claim="E3",
    defences=("trailers", "chunked; trailers"),
    stopped_by=("chunk", "trailer", "guest:"),
    variants={
        "a folded one": "X: a\r\n b",
        "a space": "X : a",
        "a line feed": "X: a\nHost: hidden.example.net",
        "a NUL": "X: a\x00",
        "no name": ": a",
    },
)


def attack(case: Case, what: Any) -> None:
    names = case.ground

    fields = ["Transfer-Encoding: chunked"]
    body = b"5\r\nhello\r\n0\r\n" + what.encode() + b"\r\n\r\n"
    case.tls(names.open, inside.request(names.open, "/", fields, method="POST", body=body))
