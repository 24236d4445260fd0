"""HTTP/2 has the name in a field of its own, and proxies that look at Host alone miss it."""

from typing import Any

from space_evaluate import inside
from space_evaluate.inside import Case
from space_evaluate.technique import Technique

TECHNIQUE = Technique(
    tries="In HTTP/2 name another host in :authority, beside a right Host, or in Host beside a right :authority.",
    claim="E3",
    defences=("authority check, ports agreement", "parser strictness: HTTP/2"),
    stopped_by=("authority_mismatch", "host"),
    variants={
        "authority": ["hidden", None],
        "another allowed name": ["second", None],
        "host beside it": ["packages", "hidden"],
        "authority beside host": ["hidden", "packages"],
    },
    quick=True,
)


def attack(case: Case, what: Any) -> None:
    authority, host = what
    names = case.ground
    more = [("host", getattr(names, host))] if host else []
    data = inside.PREFACE + inside.h2_request(getattr(names, authority), f"/simple/{case.token}/", more)
    case.tls(names.packages, data, alpn=["h2"], until=inside.h2_answered)
