"""Without a Host, or with an empty one, a server falls back to whatever it has."""

from typing import Any

from space_evaluate.inside import Case
from space_evaluate.technique import Technique

TECHNIQUE = Technique(
    tries="Send a request without Host, with an empty one, or in HTTP/1.0.",
    claim="E3",
    defences=("parser strictness: HTTP/1.1; chunked and lengths",),
    stopped_by=("host", "version", "authority_invalid"),
    variants={"none": ["1", "X: y"], "empty": ["1", "Host:"], "a space": ["1", "Host:  "], "HTTP/1.0": ["0", "X: y"]},
)


def attack(case: Case, what: Any) -> None:
    case.tls(case.ground.packages, f"GET /simple/{case.token}/ HTTP/1.{what[0]}\r\n{what[1]}\r\n\r\n".encode())
