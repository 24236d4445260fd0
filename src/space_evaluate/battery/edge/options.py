"""Options of a header say by which way a packet goes."""

from typing import Any

from space_evaluate import inside
from space_evaluate.inside import Case
from space_evaluate.technique import BOTH, Technique

TECHNIQUE = Technique(
    tries="Send packets with a source route, a record of the route, a time stamp, router alert, and options cut off.",
    claim="G3",
    defences=("edge filter and source check",),
    stopped_by=("ip_header",),
    policies=BOTH,
    variants={
        "loose source route": "830704cb00710700",
        "strict source route": "890704cb00710700",
        "record route": "0707040000000000",
        "time stamp": "440c05000000000000000000",
        "router alert": "94040000",
        "cut off": "83ff0400",
    },
)


def attack(case: Case, what: Any) -> None:
    ground = case.ground

    options = bytes.fromhex(what)
    case.frames(
        inside.ether(inside.tcp(ground.callback_at, 443, options=options)),
        inside.ether(inside.udp(b"q", to=ground.gateway, port=53, options=options)),
        rounds=3,
    )
