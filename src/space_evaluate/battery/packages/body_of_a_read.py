"""A request that reads may have a body."""

from typing import Any

from space_evaluate.inside import Case
from space_evaluate.technique import Technique

TECHNIQUE = Technique(
    tries="Send data in the body of GET and HEAD.",
    claim="E3",
    defences=("verdicts: every layer, every reading",),
    stopped_by=("body", "method_not_allowed", "guest:", "content_length"),
    variants={"GET": "GET", "HEAD": "HEAD"},
    blank="what an allowed host is told, in paths, queries or bodies, no gateway can close (docs/policy.md)",
)


def attack(case: Case, what: Any) -> None:
    got = case.http(case.ground.packages, f"/simple/{case.token}/", method=what, body=b"data " * 200)
    case.refused(f"answered {got[:30]!r}: what an allowed host is told in a request is beyond a gateway")
