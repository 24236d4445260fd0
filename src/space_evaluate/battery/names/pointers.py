"""Names may point to earlier bytes of the message, and a pointer that points to itself never ends."""

import struct
from typing import Any

from space_evaluate.inside import Case
from space_evaluate.technique import Technique

TECHNIQUE = Technique(
    tries="Ask with names that point to themselves, forwards, into the head, or in a long chain.",
    claim="E3",
    defences=("DNS strictness",),
    stopped_by=("dns_malformed",),
    variants={one: one for one in ("itself", "the head", "forwards", "beyond", "a chain")},
)


def attack(case: Case, what: Any) -> None:
    names = {
        "itself": b"\xc0\x0c",
        "the head": b"\xc0\0",
        "forwards": b"\xc0\x20",
        "beyond": b"\xff\xff",
        "a chain": b"".join(b"\xc0" + bytes([14 + 2 * at]) for at in range(60)),
    }
    case.send_query(struct.pack("!6H", 7, 0x0100, 1, 0, 0, 0) + names[what] + b"\0\1\0\1", seconds=1)
