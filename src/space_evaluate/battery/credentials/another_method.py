"""A grant is for methods, and a server may believe another."""

from typing import Any

from space_evaluate.inside import Case
from space_evaluate.technique import HOST_SECRET, Technique

TECHNIQUE = Technique(
    tries="Use the credential with methods beyond the grant's, and name them elsewhere.",
    claim="C1",
    defences=("whose a grant is and what it permits", "verdicts: every layer, every reading"),
    stopped_by=("method_not_allowed", "method_override", "grant_", "no_grant", "trace", "guest:", "request_line"),
    goals=(HOST_SECRET,),
    variants={
        "POST": ["POST", "/me"],
        "DELETE": ["DELETE", "/me"],
        "TRACE": ["TRACE", "/me"],
        "override": ["GET", "/me", "X-HTTP-Method-Override: DELETE"],
        "a parameter": ["GET", "/me?_method=DELETE"],
    },
    quick=True,
)


def attack(case: Case, what: Any) -> None:
    got = case.http("api.example.com", what[1], what[2:], method=what[0])
    if got.startswith(b"HTTP/1.1 200"):
        raise RuntimeError("it was lent")
    if got.startswith(b"HTTP/1.1 401"):
        case.refused("it went out, and without the credential")
