"""A field that Connection names is taken off, also one that the gateway relies on."""

from typing import Any

from space_evaluate import inside
from space_evaluate.inside import Case
from space_evaluate.technique import Technique

TECHNIQUE = Technique(
    tries="Have Connection name Host, the length or the credential's slot.",
    claim="E3",
    defences=("parser strictness: HTTP/1.1; chunked and lengths",),
    stopped_by=("connection", "field", "hop", "content_length"),
    variants={"host": "host", "close, host": "close, host", "x, host": "x, host", "HOST": "HOST"},
)


def attack(case: Case, what: Any) -> None:
    case.tls(case.ground.packages, inside.request(case.ground.packages, f"/simple/{case.token}/", [f"Connection: {what}"]))
