"""A length that one parser reads as a number and the other does not."""

from typing import Any

from space_evaluate import inside
from space_evaluate.inside import Case
from space_evaluate.technique import Technique

TECHNIQUE = Technique(
    tries="Send lengths with signs, in hex, in lists, with spaces, in digits of other scripts, and beyond 64 bits.",
    claim="E3",
    defences=("parser strictness: HTTP/1.1; chunked and lengths",),
    stopped_by=("content_length", "field"),
    variants={
        "+4": "+4",
        "-4": "-4",
        "0x4": "0x4",
        "4, 4": "4, 4",
        "4 4": "4 4",
        "4.0": "4.0",
        "4e0": "4e0",
        "Ù¤": "Ù¤",
        "18446744073709551620": "18446744073709551620",
        "04;": "04;",
        '"4"': '"4"',
    },
    quick=True,
)


def attack(case: Case, what: Any) -> None:
    names = case.ground
    hidden = inside.request(names.hidden, f"/smuggled/{case.token}")
    fields = [f"Content-Length: {what}"]
    body = hidden
    case.tls(names.open, inside.request(names.open, "/", fields, method="POST", body=body))
