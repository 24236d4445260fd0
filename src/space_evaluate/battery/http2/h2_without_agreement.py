"""HTTP/2 may be begun by whoever knows that it is there, or by an upgrade."""

from typing import Any

from space_evaluate import inside
from space_evaluate.inside import Case
from space_evaluate.technique import Technique

TECHNIQUE = Technique(
    tries="Begin HTTP/2 where HTTP/1.1 was agreed on, or ask for h2c.",
    claim="E3",
    defences=("parser strictness: HTTP/2",),
    stopped_by=("version", "request_line", "upgrade", "websocket_not_allowed", "field", "h2", "connection", "guest:"),
    variants={one: one for one in ("preface", "h2c")},
)


def attack(case: Case, what: Any) -> None:
    data = {
        "preface": inside.PREFACE + inside.h2_request(case.ground.hidden, "/"),
        "h2c": inside.request(
            case.ground.packages, f"/simple/{case.token}/", ["Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAAA"]
        ),
    }
    got = case.tls(case.ground.packages, data[what])
    if b" 101 " in got:
        raise RuntimeError("the connection was switched")
    case.refused("nothing was switched")
