"""The scheme of a stream is a field as well."""

from typing import Any

from space_evaluate import inside
from space_evaluate.inside import Case
from space_evaluate.technique import Technique

TECHNIQUE = Technique(
    tries="Ask in HTTP/2 for http, another scheme, or an empty one, and for an authority with a port.",
    claim="E3",
    defences=("parser strictness: HTTP/2", "authority check, ports agreement"),
    stopped_by=("scheme", "authority_mismatch", "authority_", "pseudo", "head", "h2_"),
    variants={
        "http": ["http", ""],
        "ftp": ["ftp", ""],
        "empty": ["", ""],
        "another port": ["https", ":8443"],
        "userinfo": ["https", "@hidden.example.net"],
    },
)


def attack(case: Case, what: Any) -> None:
    case.tls(
        case.ground.packages,
        inside.PREFACE + inside.h2_request(case.ground.packages + what[1], f"/simple/{case.token}/", scheme=what[0]),
        alpn=["h2"],
        until=inside.h2_answered,
    )
