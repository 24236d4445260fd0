"""A header that is none is read by somebody anyway."""

from typing import Any

from space_evaluate import inside
from space_evaluate.inside import Case
from space_evaluate.technique import BOTH, Technique

TECHNIQUE = Technique(
    tries="Send packets of another version, with too short a header, a length that lies, or none.",
    claim="G3",
    defences=("edge filter and source check",),
    stopped_by=("ip_header", "guest_protocol"),
    policies=BOTH,
    variants={one: one for one in ("version 5", "a short header", "a header beyond the end", "version 6")},
)


def attack(case: Case, what: Any) -> None:
    ground = case.ground
    query = inside.udp(inside.question(f"{case.token}.{ground.callback}"), to=ground.gateway, port=53)

    packet = bytearray(query)
    if what == "version 5":
        packet[0] = 0x55
    elif what == "a short header":
        packet[0] = 0x44
    elif what == "a header beyond the end":
        packet[0] = 0x4F
    elif what == "version 6":
        packet[0] = 0x65
    case.frames(inside.ether(bytes(packet)), rounds=3)
