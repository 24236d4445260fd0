"""A body that waits for a word may be sent to somebody else meanwhile."""

from typing import Any

from space_evaluate import inside
from space_evaluate.inside import Case
from space_evaluate.technique import Technique

TECHNIQUE = Technique(
    tries="Announce a body, let the reply come, and send a request for another host in its place.",
    claim="E3",
    defences=("parser strictness: HTTP/1.1; chunked and lengths",),
    stopped_by=("expect", "body", "authority_mismatch", "idle", "guest:", "slow_body", "method_not_allowed"),
    variants={"POST": "POST", "GET": "GET"},
)


def attack(case: Case, what: Any) -> None:
    names = case.ground
    head = inside.request(names.packages, f"/simple/{case.token}/", ["Expect: 100-continue", "Content-Length: 10"], method=what)
    got = case.tls(names.packages, head + inside.request(names.hidden, "/"), until=lambda got: got.count(b"HTTP/1.1 ") > 1)
    if b"hidden" not in got:
        case.refused("the body was a body")
