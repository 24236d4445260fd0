"""A repository that is read can be written to, and read by everybody."""

from typing import Any

from space_evaluate.inside import Case
from space_evaluate.technique import Technique

TECHNIQUE = Technique(
    tries="Publish a package: to the upload paths of indexes, by the methods that they take.",
    claim="E3",
    defences=("verdicts: every layer, every reading",),
    stopped_by=("method_not_allowed", "path_not_allowed"),
    variants={
        "pip": ["POST", "/legacy/"],
        "npm": ["PUT", "/{token}"],
        "cargo": ["PUT", "/api/v1/crates/new"],
        "a file": ["PUT", "/files/{token}.whl"],
        "to the index": ["POST", "/simple/{token}/"],
        "a login": ["PUT", "/-/user/org.couchdb.user:x"],
        "a token": ["POST", "/-/npm/v1/tokens"],
        "by GET": ["GET", "/legacy/?:action=file_upload&content={token}"],
    },
    quick=True,
)


def attack(case: Case, what: Any) -> None:
    method, path = what
    case.http(
        case.ground.packages,
        path.format(token=case.token),
        ["Content-Type: application/octet-stream"],
        method=method,
        body=case.token.encode() * 20,
    )
