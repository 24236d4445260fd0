"""The oldest of smuggling: one parser believes the length, the other the chunks."""

from typing import Any

from space_evaluate import inside
from space_evaluate.inside import Case
from space_evaluate.technique import Technique

TECHNIQUE = Technique(
    tries="Send a body with a length and chunks, in either order, so that its rest is a request.",
    claim="E3",
    defences=("parser strictness: HTTP/1.1; chunked and lengths",),
    stopped_by=("both",),
    variants={
        "length first": ["Content-Length: 4", "Transfer-Encoding: chunked"],
        "chunks first": ["Transfer-Encoding: chunked", "Content-Length: 4"],
        "length 0": ["Content-Length: 0", "Transfer-Encoding: chunked"],
        "in capitals": ["CONTENT-LENGTH: 4", "transfer-encoding: CHUNKED"],
    },
    quick=True,
)


def attack(case: Case, what: Any) -> None:
    names = case.ground
    hidden = inside.request(names.hidden, f"/smuggled/{case.token}")
    fields = what
    body = b"0\r\n\r\n" + hidden
    case.tls(names.open, inside.request(names.open, "/", fields, method="POST", body=body))
