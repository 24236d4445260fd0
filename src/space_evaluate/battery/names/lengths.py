"""Parsers fail at the ends of what is possible."""

import struct
from typing import Any

from space_evaluate import inside
from space_evaluate.inside import Case
from space_evaluate.technique import Technique

TECHNIQUE = Technique(
    tries="Ask with a label of 64 bytes, a name of 256, an empty one, a message cut anywhere.",
    claim="E3",
    defences=("DNS strictness",),
    stopped_by=("dns_malformed", "name_not_allowed", "name_invalid"),
    variants={one: one for one in ("a label of 64", "a name of 256", "the root", "no end", "cut")},
)


def attack(case: Case, what: Any) -> None:
    head = struct.pack("!6H", 7, 0x0100, 1, 0, 0, 0)
    if what == "cut":
        for end in range(0, 32, 3):
            case.send_query(inside.question(case.ground.packages)[:end], seconds=0.2)
        return
    names = {
        "a label of 64": bytes([64]) + b"a" * 64 + b"\0",
        "a name of 256": (bytes([63]) + b"a" * 63) * 4 + b"\0",
        "the root": b"\0",
        "no end": bytes([63]) + b"a" * 63,
    }
    case.send_query(head + names[what] + b"\0\1\0\1", seconds=1)
