"""A field that only one parser takes for the coding."""

from typing import Any

from space_evaluate import inside
from space_evaluate.inside import Case
from space_evaluate.technique import Technique

TECHNIQUE = Technique(
    tries="Write the name of the coding's field with a space, an underscore, a tab, or as the rest of a folded line.",
    claim="E3",
    defences=("parser strictness: HTTP/1.1; chunked and lengths",),
    stopped_by=("field", "transfer_encoding", "content_length", "spelling", "framing", "method_"),
    variants={
        "a space": ["Transfer-Encoding : chunked"],
        "a tab": ["Transfer-Encoding\t: chunked"],
        "folded": ["X: a", " Transfer-Encoding: chunked"],
        "a byte before": ["\x00Transfer-Encoding: chunked"],
        "a space before": [" Transfer-Encoding: chunked"],
        "a line feed in a value": ["X: a\nTransfer-Encoding: chunked"],
    },
)


def attack(case: Case, what: Any) -> None:
    names = case.ground
    hidden = inside.request(names.hidden, f"/smuggled/{case.token}")
    fields = ["Content-Length: 44", *what]
    body = (b"0\r\n\r\n" + hidden)[:44]
    case.tls(names.open, inside.request(names.open, "/", fields, method="POST", body=body))
