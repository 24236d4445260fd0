"""A packet to everybody goes to whoever listens."""

from typing import Any

from space_evaluate import inside
from space_evaluate.inside import Case
from space_evaluate.technique import BOTH, Technique

TECHNIQUE = Technique(
    tries="Send to multicast and broadcast addresses, by their MAC, by their address, by both.",
    claim="G3",
    defences=("edge filter and source check",),
    stopped_by=("guest_group", "foreign_target", "guest_other"),
    policies=BOTH,
    variants={
        "all": ["255.255.255.255", "ffffffffffff"],
        "of the link": ["10.0.0.3", "ffffffffffff"],
        "multicast": ["224.0.0.251", "01005e0000fb"],
        "DNS in a broadcast frame": ["10.0.0.1", "ffffffffffff"],
        "multicast in a frame to the gateway": ["224.0.0.251", "525400000001"],
        "a network's": ["198.19.255.255", "ffffffffffff"],
    },
)


def attack(case: Case, what: Any) -> None:
    address, mac = what
    case.frames(inside.ether(inside.udp(case.token.encode(), to=address, port=53), target=bytes.fromhex(mac)), rounds=3)
