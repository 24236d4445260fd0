"""A repository that is read must not be written to."""

from typing import Any

from space_evaluate import inside
from space_evaluate.inside import Case
from space_evaluate.technique import Technique

TECHNIQUE = Technique(
    tries="Use methods that write where a rule allows to read, in other letters too.",
    claim="E3",
    defences=("verdicts: every layer, every reading",),
    stopped_by=("method_not_allowed", "request_line", "trace", "method"),
    variants={
        "POST": "POST",
        "PUT": "PUT",
        "DELETE": "DELETE",
        "PATCH": "PATCH",
        "PROPFIND": "PROPFIND",
        "MKCOL": "MKCOL",
        "Get": "Get",
        "GETS": "GETS",
        "TRACE": "TRACE",
        "TRACK": "TRACK",
    },
    quick=True,
)


def attack(case: Case, what: Any) -> None:
    case.tls(case.ground.packages, inside.request(case.ground.packages, f"/simple/{case.token}/", method=what, body=b"x"))
