"""Whoever believes the sender's address lets a guest be another."""

from typing import Any

from space_evaluate import inside
from space_evaluate.inside import Case
from space_evaluate.technique import BOTH, Technique

TECHNIQUE = Technique(
    tries="Send queries and SYNs with the address of the gateway, of another guest, of the host, of nobody.",
    claim="G3",
    defences=("edge filter and source check",),
    stopped_by=("foreign_source",),
    policies=BOTH,
    variants={
        "10.0.0.1": "10.0.0.1",
        "10.0.0.3": "10.0.0.3",
        "10.0.0.6": "10.0.0.6",
        "127.0.0.1": "127.0.0.1",
        "0.0.0.0": "0.0.0.0",
        "255.255.255.255": "255.255.255.255",
        "203.0.113.7": "203.0.113.7",
    },
    quick=True,
)


def attack(case: Case, what: Any) -> None:
    ground = case.ground

    packets = [
        inside.udp(inside.question(case.token), to=ground.gateway, port=53, source=what),
        inside.tcp(ground.callback_at, 443, source=what),
        inside.tcp("198.18.0.9", 443, source=what),
    ]
    case.frames(*map(inside.ether, packets), rounds=2)
