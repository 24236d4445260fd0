"""A head may go on in any number of frames."""

from typing import Any

from space_evaluate import inside
from space_evaluate.inside import Case
from space_evaluate.technique import Technique

TECHNIQUE = Technique(
    tries="Send a head in thousands of continuation frames, without an end.",
    claim="E3",
    defences=("parser strictness: HTTP/2",),
    stopped_by=("http2_flood_head",),
    variants={"empty": 0, "small": 4},
)


def attack(case: Case, what: Any) -> None:
    case.tls(
        case.ground.packages,
        inside.PREFACE
        + inside.h2_frame(inside.HEADERS, b"", flags=1, stream=1)
        + inside.h2_frame(inside.CONTINUATION, b"\0\1x\1y" * what, stream=1) * 2000,
        alpn=["h2"],
        until=inside.h2_answered,
    )
