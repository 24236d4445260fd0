"""And by UDP."""

from typing import Any

from space_evaluate import inside
from space_evaluate.inside import Case
from space_evaluate.technique import BOTH, Technique

TECHNIQUE = Technique(
    tries="Send to ports of the gateway's address by UDP: NTP, SNMP, DHCP, TFTP, portmap, syslog.",
    claim="G3",
    defences=("edge filter and source check",),
    stopped_by=("gateway_port",),
    policies=BOTH,
)


def attack(case: Case, what: Any) -> None:
    ground = case.ground

    for port in (67, 68, 69, 111, 123, 161, 162, 389, 500, 514, 1900, 4500, 5353, 11211):
        case.frames(inside.ether(inside.udp(case.token.encode(), to=ground.gateway, port=port, source_port=port)))
