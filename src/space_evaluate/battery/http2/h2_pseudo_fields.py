"""The four fields that begin with a colon say everything, once."""

from typing import Any

from space_evaluate import inside
from space_evaluate.inside import Case
from space_evaluate.technique import Technique

TECHNIQUE = Technique(
    tries="Send them twice, behind others, unknown, or not at all.",
    claim="E3",
    defences=("parser strictness: HTTP/2",),
    stopped_by=("pseudo", "head", "http2_", "field", "host", "authority", "path", "target_form", "method"),
    variants={
        one: one
        for one in ("path twice", "authority twice", "behind a field", "unknown", "no path", "no authority", "no method", "protocol")
    },
    quick=True,
)


def attack(case: Case, what: Any) -> None:
    right = [(":method", "GET"), (":scheme", "https"), (":authority", case.ground.packages), (":path", f"/simple/{case.token}/")]
    fields = {
        "path twice": [*right, (":path", "/admin")],
        "authority twice": [*right, (":authority", case.ground.hidden)],
        "behind a field": [*right[:3], ("x", "y"), right[3]],
        "unknown": [*right, (":host", case.ground.hidden)],
        "no path": right[:3],
        "no authority": [right[0], right[1], right[3]],
        "no method": right[1:],
        "protocol": [*right, (":protocol", "websocket")],
    }
    case.tls(
        case.ground.packages,
        inside.PREFACE + inside.h2_frame(inside.HEADERS, inside.h2_fields(fields[what]), flags=5, stream=1),
        alpn=["h2"],
        until=inside.h2_answered,
    )
