"""A head without end fills memory, and what is cut may be what is judged."""

from typing import Any

from space_evaluate import inside
from space_evaluate.inside import Case
from space_evaluate.technique import Technique

TECHNIQUE = Technique(
    tries="Send a head of 200 KB: one field, many, a long target.",
    claim="E3",
    defences=("parser strictness: HTTP/1.1; chunked and lengths",),
    stopped_by=("too_large", "too_many", "too_long", "path", "request_line", "field"),
    variants={"a target": [100000, 0, 0], "a field": [1, 200000, 1], "many fields": [1, 10, 3000]},
)


def attack(case: Case, what: Any) -> None:
    case.tls(case.ground.packages, inside.request(case.ground.packages, f"/simple/{'a' * what[0]}", ["X: " + "b" * what[1]] * what[2]))
