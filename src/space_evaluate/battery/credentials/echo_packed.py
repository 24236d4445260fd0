"""What is packed is not searched, unless nobody packs."""

from typing import Any

from space_evaluate.inside import Case
from space_evaluate.technique import HOST_SECRET, Technique

TECHNIQUE = Technique(
    tries="Ask for an echo packed, in ranges, and in pieces.",
    claim="C1",
    defences=("credentials: tripwire",),
    stopped_by=("guest:", "echo", "tripwire"),
    goals=(HOST_SECRET,),
    variants={
        "gzip": ["Accept-Encoding: gzip"],
        "br": ["Accept-Encoding: br, zstd"],
        "a range": ["Range: bytes=0-60", "If-Range: x"],
        "ranges": ["Range: bytes=0-20,21-60,61-200"],
        "te": ["TE: gzip", "Connection: TE"],
    },
)


def attack(case: Case, what: Any) -> None:
    case.http("api.example.com", "/echo", what, seconds=8)
    case.refused("nothing of it came")
