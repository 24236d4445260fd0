"""A length in HTTP/2 is said twice, and becomes the only one behind it."""

from typing import Any

from space_evaluate import inside
from space_evaluate.inside import Case
from space_evaluate.technique import Technique

TECHNIQUE = Technique(
    tries="Send a body that is longer, or shorter, than its length says, or two lengths.",
    claim="E3",
    defences=("parser strictness: HTTP/2",),
    stopped_by=("content_length", "http2_", "body", "length", "method_not_allowed"),
    variants={"longer": [["4"], 400], "shorter": [["400"], 4], "two": [["4", "5"], 4], "a sign": [["+4"], 4], "a list": [["4, 4"], 4]},
)


def attack(case: Case, what: Any) -> None:
    case.tls(
        case.ground.open,
        inside.PREFACE
        + inside.h2_request(case.ground.open, "/", [("content-length", one) for one in what[0]], method="POST", body=b"x" * what[1]),
        alpn=["h2"],
        until=inside.h2_answered,
    )
