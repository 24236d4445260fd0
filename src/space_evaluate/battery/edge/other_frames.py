"""Switches and cards speak protocols of their own."""

from typing import Any

from space_evaluate import inside
from space_evaluate.inside import Case
from space_evaluate.technique import BOTH, Technique

TECHNIQUE = Technique(
    tries="Send LLDP, spanning tree, PPPoE, MACsec, MPLS, pause frames, Wake on LAN, and lengths for a kind.",
    claim="G3",
    defences=("edge filter and source check",),
    stopped_by=("guest_other",),
    policies=BOTH,
    variants={
        "LLDP": 35020,
        "PPPoE": 34915,
        "PPPoE session": 34916,
        "MACsec": 35045,
        "MPLS": 34887,
        "pause": 34824,
        "wake on LAN": 2114,
        "PTP": 35063,
        "EAPOL": 34958,
        "a length": 46,
        "AoE": 34978,
    },
)


def attack(case: Case, what: Any) -> None:
    case.frames(
        *(
            inside.ether(bytes(46), kind=what, target=target)
            for target in (inside.HOST_MAC, inside.BROADCAST, bytes.fromhex("0180c2000000"))
        )
    )
