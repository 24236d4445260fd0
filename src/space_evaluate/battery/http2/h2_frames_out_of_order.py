"""A state machine that is pushed about may forget what it judged."""

from typing import Any

from space_evaluate import inside
from space_evaluate.inside import Case
from space_evaluate.technique import Technique

TECHNIQUE = Technique(
    tries="Send data for a stream that is not there, heads on an even or old stream, a push, or a continuation alone.",
    claim="E3",
    defences=("parser strictness: HTTP/2",),
    stopped_by=("http2_",),
    variants={one: one for one in ("data alone", "an even stream", "an old stream", "a push", "continuation alone", "data on 0")},
)


def attack(case: Case, what: Any) -> None:
    frames = {
        "data alone": inside.h2_frame(inside.DATA, b"x", stream=9),
        "an even stream": inside.h2_request(case.ground.packages, "/simple/", stream=2),
        "an old stream": inside.h2_request(case.ground.packages, "/simple/", stream=5)
        + inside.h2_request(case.ground.hidden, "/", stream=3),
        "a push": inside.h2_frame(inside.PUSH_PROMISE, bytes(4) + inside.h2_fields([(":path", "/")]), flags=4, stream=1),
        "continuation alone": inside.h2_frame(inside.CONTINUATION, b"x", stream=1),
        "data on 0": inside.h2_frame(inside.DATA, b"x"),
    }
    case.tls(
        case.ground.packages,
        inside.PREFACE + inside.h2_request(case.ground.packages, f"/simple/{case.token}/") + frames[what],
        alpn=["h2"],
        until=lambda got: b"\0\0\x08\x07" in got,
    )
