"""A host that believes ARP sends its packets to whoever says so."""

import socket
import struct
from typing import Any

from space_evaluate import inside
from space_evaluate.inside import Case
from space_evaluate.technique import BOTH, Technique

TECHNIQUE = Technique(
    tries="Say by ARP that the gateway, the guest's neighbour, or a name's address is here.",
    claim="G3",
    defences=("edge filter and source check",),
    stopped_by=("arp_forged",),
    policies=BOTH,
    variants={
        "as the gateway": [2, "525400000002", "10.0.0.1", "10.0.0.1"],
        "gratuitous": [1, "525400000002", "10.0.0.2", "10.0.0.2"],
        "another card": [1, "525400000099", "10.0.0.2", "10.0.0.1"],
        "a name's address": [1, "525400000002", "10.0.0.2", "198.18.0.9"],
        "a neighbour": [2, "525400000002", "10.0.0.6", "10.0.0.1"],
    },
    quick=True,
)


def attack(case: Case, what: Any) -> None:
    operation, mac, sender, asked = what
    payload = (
        struct.pack("!HHBBH", 1, 0x0800, 6, 4, operation)
        + bytes.fromhex(mac)
        + socket.inet_aton(sender)
        + bytes(6)
        + socket.inet_aton(asked)
    )
    case.frames(inside.ether(payload, kind=0x0806, target=inside.BROADCAST), inside.ether(payload, kind=0x0806), rounds=3)
