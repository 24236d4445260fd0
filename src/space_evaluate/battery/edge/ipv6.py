"""A wall of IPv4 is none for IPv6."""

import struct
from typing import Any

from space_evaluate import inside
from space_evaluate.inside import Case
from space_evaluate.technique import BOTH, Technique

TECHNIQUE = Technique(
    tries="Send router and neighbour messages, a SYN and a query by IPv6.",
    claim="G3",
    defences=("edge filter and source check",),
    stopped_by=("guest_ipv6",),
    policies=BOTH,
    variants={
        "router advertisement": [58, 134],
        "router solicitation": [58, 133],
        "neighbour": [58, 135],
        "redirect": [58, 137],
        "hop by hop": [0, 58],
        "UDP": [17, 0],
        "TCP": [6, 1],
    },
    quick=True,
)


def attack(case: Case, what: Any) -> None:
    source, every = bytes.fromhex("fe80" + "00" * 13 + "02"), bytes.fromhex("ff02" + "00" * 13 + "01")
    kind, body = what[0], bytes([what[1]]) + bytes(23)
    packet = struct.pack("!IHBB", 6 << 28, len(body), kind, 255) + source + every + body
    case.frames(inside.ether(packet, kind=0x86DD, target=bytes.fromhex("333300000001")), inside.ether(packet, kind=0x86DD), rounds=3)
