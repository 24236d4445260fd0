"""Guests of one host are on one host."""

from typing import Any

from space_evaluate.inside import Case
from space_evaluate.technique import BOTH, HOST_SECRET, Technique

TECHNIQUE = Technique(
    tries="Scan the addresses that other guests, their gateways, and the host's bridges have.",
    claim="G3",
    defences=("edge filter and source check",),
    stopped_by=("guest_tcp", "gateway_port", "foreign_source"),
    goals=(HOST_SECRET,),
    policies=BOTH,
    variants={
        "of the link": ["10.0.0.0", "10.0.0.3", "10.0.0.6"],
        "usual bridges": ["172.17.0.1", "192.168.122.1", "10.0.2.2", "10.0.3.1"],
        "of other blocks": ["10.1.0.2", "10.255.0.2"],
        "the guest link of QEMU": ["10.0.2.3", "10.0.2.15"],
    },
    quick=True,
)


def attack(case: Case, what: Any) -> None:
    for address in what:
        case.connect(address, 22, seconds=0.7)
        case.connect(address, 80, seconds=0.7)
