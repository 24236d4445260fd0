"""A body whose end two parsers see in two places is a request that only one of them sees."""

from typing import Any

from space_evaluate import inside
from space_evaluate.inside import Case
from space_evaluate.technique import Technique

TECHNIQUE = Technique(
    tries="Send a body with two lengths, so that its rest is a request that was not judged.",
    claim="E3",
    defences=("parser strictness: HTTP/1.1; chunked and lengths",),
    stopped_by=("content_length",),
    variants={"different": ["4", "5"], "equal": ["4", "4"], "the first is none": ["", "4"]},
    quick=True,
)


def attack(case: Case, what: Any) -> None:
    names = case.ground
    smuggled = inside.request(names.hidden, f"/smuggled/{case.token}")
    data = inside.request(names.open, "/", [f"Content-Length: {one}" for one in what], method="POST", body=smuggled)
    case.tls(names.open, data)
