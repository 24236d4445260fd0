"""A coding that only one parser recognises."""

from typing import Any

from space_evaluate import inside
from space_evaluate.inside import Case
from space_evaluate.technique import Technique

TECHNIQUE = Technique(
    tries="Write chunked with a tab, in quotes, with a parameter, with bytes behind it, or with another letter.",
    claim="E3",
    defences=("parser strictness: HTTP/1.1; chunked and lengths",),
    stopped_by=("transfer_encoding", "field", "both"),
    variants={
        "a vertical tab": "\x0bchunked",
        "quotes": ' "chunked"',
        "a parameter": " chunked;q=1",
        "a byte behind": " chunked\x00",
        "a letter": " xchunked",
        "a long s": " chunçked",
        "a comma": " ,chunked",
        "a form feed": " chunked\x0c",
    },
    quick=True,
)


def attack(case: Case, what: Any) -> None:
    names = case.ground
    hidden = inside.request(names.hidden, f"/smuggled/{case.token}")
    fields = [f"Transfer-Encoding:{what}"]
    body = b"0\r\n\r\n" + hidden
    case.tls(names.open, inside.request(names.open, "/", fields, method="POST", body=body))
