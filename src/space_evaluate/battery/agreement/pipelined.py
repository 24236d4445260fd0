"""Some proxies judge the first request of a connection and pass on the rest."""

from typing import Any

from space_evaluate import inside
from space_evaluate.inside import Case
from space_evaluate.technique import Technique

TECHNIQUE = Technique(
    tries="Let a request for another host follow an allowed one on the same connection.",
    claim="E3",
    defences=("authority check, ports agreement",),
    stopped_by=("authority_mismatch", "path_not_allowed"),
    variants={"hidden": ["hidden", "/"], "another allowed name": ["second", "/simple/"], "another path": ["packages", "/admin"]},
    quick=True,
)


def attack(case: Case, what: Any) -> None:
    first = inside.request(case.ground.packages, f"/simple/{case.token}/")
    second = inside.request(getattr(case.ground, what[0]), what[1])
    case.tls(
        case.ground.packages,
        first + second,
        until=lambda got: got.count(b"HTTP/1.1 ") > 1 and inside.answered(got[got.rfind(b"HTTP/1.1 ") :]),
    )
