"""Machines of one network find each other by names without a server."""

import socket
from typing import Any

from space_evaluate import inside
from space_evaluate.inside import Case
from space_evaluate.technique import BOTH, Technique

TECHNIQUE = Technique(
    tries="Ask by multicast DNS, LLMNR, NetBIOS and SSDP who is there.",
    claim="G3",
    defences=("edge filter and source check",),
    stopped_by=("guest_group",),
    policies=BOTH,
    variants={
        "mDNS": ["224.0.0.251", 5353],
        "LLMNR": ["224.0.0.252", 5355],
        "NetBIOS": ["10.0.0.3", 137],
        "SSDP": ["239.255.255.250", 1900],
    },
)


def attack(case: Case, what: Any) -> None:
    address, port = what
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
        sock.settimeout(1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, inside.interface().encode())
        for _ in range(3):
            try:
                sock.sendto(inside.question(f"{case.token}.local"), (address, port))
            except OSError:
                frame = inside.ether(inside.udp(inside.question(f"{case.token}.local"), to=address, port=port), target=inside.BROADCAST)
                case.frames(frame)
        case.did(f"asked {address}:{port} three times")
