"""A question may carry records of its own, and a cache that takes them is poisoned."""

import socket
import struct
from typing import Any

from space_evaluate import inside
from space_evaluate.inside import Case
from space_evaluate.technique import Technique

TECHNIQUE = Technique(
    tries="Put answers, authorities and additional records into a question for an allowed name.",
    claim="E3",
    defences=("DNS strictness",),
    stopped_by=("dns_malformed",),
    variants={"an answer": [1, 1, 0, 0], "an authority": [1, 0, 1, 0], "two additional": [1, 0, 0, 2]},
    quick=True,
)


def attack(case: Case, what: Any) -> None:
    record = b"\xc0\x0c" + struct.pack("!HHIH", 1, 1, 86_400, 4) + socket.inet_aton(case.ground.callback_at)
    case.send_query(inside.question(case.ground.packages, counts=tuple(what), more=record * sum(what[1:])))
