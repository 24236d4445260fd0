"""A size of a chunk that two parsers read as two numbers."""

from typing import Any

from space_evaluate import inside
from space_evaluate.inside import Case
from space_evaluate.technique import Technique

TECHNIQUE = Technique(
    tries="Send chunks whose sizes have signs, prefixes, underscores, spaces, or more than 64 bits.",
    claim="E3",
    defences=("chunked; trailers",),
    stopped_by=("chunk",),
    variants={
        "+5": "+5",
        "-5": "-5",
        "0x5": "0x5",
        "5_0": "5_0",
        "5 ": "5 ",
        " 5": " 5",
        "10000000000000005": "10000000000000005",
        "5;a=b": "5;a=b",
        "5\t": "5\t",
        "": "",
        "five": "five",
    },
    quick=True,
)


def attack(case: Case, what: Any) -> None:
    names = case.ground
    hidden = inside.request(names.hidden, f"/smuggled/{case.token}")
    fields = ["Transfer-Encoding: chunked"]
    body = what.encode() + b"\r\nhello\r\n0\r\n\r\n" + hidden
    case.tls(names.open, inside.request(names.open, "/", fields, method="POST", body=body))
