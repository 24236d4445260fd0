"""A request may name its host in its first line, and parsers differ on which name counts."""

from typing import Any

from space_evaluate import inside
from space_evaluate.inside import Case
from space_evaluate.technique import Technique

TECHNIQUE = Technique(
    tries="Ask with a whole URL of another host in the first line, beside a right Host.",
    claim="E3",
    defences=("authority check, ports agreement",),
    stopped_by=("target_form", "authority_mismatch", "path_not_allowed"),
    variants={
        "https": "https://{hidden}/simple/{token}/",
        "http": "http://{hidden}/simple/{token}/",
        "without a scheme": "//{hidden}/simple/{token}/",
        "userinfo": "https://{packages}@{hidden}/simple/{token}/",
        "a backslash": "https://{packages}\\\\@{hidden}/",
    },
    quick=True,
)


def attack(case: Case, what: Any) -> None:
    case.tls(
        case.ground.packages,
        inside.request(case.ground.packages, what.format(hidden=case.ground.hidden, packages=case.ground.packages, token=case.token)),
    )
