"""And TLS where plain HTTP is due hides everything from it."""

from typing import Any

from space_evaluate.inside import Case
from space_evaluate.technique import Technique

TECHNIQUE = Technique(
    tries="Shake hands at the plain port of a name that a rule allows over http.",
    claim="E3",
    defences=("parser strictness: HTTP/1.1; chunked and lengths",),
    stopped_by=("request_line", "not_http", "field", "line_end", "too_large", "method"),
)


def attack(case: Case, what: Any) -> None:
    case.tls(case.address(case.ground.plain), b"GET / HTTP/1.1\r\n\r\n", sni=case.ground.hidden, port=80)
