"""What listens on loopback trusts whoever can reach it."""

from typing import Any

from space_evaluate import inside
from space_evaluate.inside import Case
from space_evaluate.technique import BOTH, HOST_SECRET, Technique

TECHNIQUE = Technique(
    tries="Connect to 127.0.0.0/8 over the link, with frames that a kernel would not send.",
    claim="G3",
    defences=("edge filter and source check",),
    stopped_by=("ip_header", "guest_tcp", "guest_group", "foreign_source"),
    goals=(HOST_SECRET,),
    policies=BOTH,
    variants={"127.0.0.1": "127.0.0.1", "127.1.2.3": "127.1.2.3", "0.0.0.0": "0.0.0.0"},
)


def attack(case: Case, what: Any) -> None:
    for port in (22, 80, case.ground.host_port, 8080):
        case.frames(inside.ether(inside.tcp(what, port)), inside.ether(inside.tcp(what, port, source="127.0.0.1")))
