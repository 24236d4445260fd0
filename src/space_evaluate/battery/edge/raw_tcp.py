"""A segment without a connection may open one where state is loose."""

from typing import Any

from space_evaluate import inside
from space_evaluate.inside import Case
from space_evaluate.technique import BOTH, Technique

TECHNIQUE = Technique(
    tries="Send ACK, FIN, RST, SYN with data, all flags and none to the attacker's address and to a name's.",
    claim="G3",
    defences=("edge filter and source check",),
    stopped_by=("guest_tcp", "guest:"),
    policies=BOTH,
    variants={"ACK": 16, "FIN": 1, "SYN, FIN": 3, "RST": 4, "SYN, ACK": 18, "all": 255, "none": 0, "SYN with data": 2},
)


def attack(case: Case, what: Any) -> None:
    ground = case.ground

    for to in (ground.callback_at, ground.host_at):
        case.frames(*(inside.ether(inside.tcp(to, port, flags=what, ack=1, data=case.token.encode())) for port in (443, 53, 22)))
