"""A name in a handshake may be an address, or none at all."""

from typing import Any

from space_evaluate import inside
from space_evaluate.inside import Case
from space_evaluate.technique import Technique

TECHNIQUE = Technique(
    tries="Shake hands with an address, a number, or odd bytes for a name.",
    claim="E3",
    defences=("SNI check", "parser strictness: ClientHello"),
    stopped_by=("sni_", "hello_", "not_tls", "server_name", "hello"),
    variants={
        "the attacker's address": "{callback}",
        "loopback": "127.0.0.1",
        "an underscore": "_.packages.example.com",
        "a single label": "packages",
    },
)


def attack(case: Case, what: Any) -> None:
    context = inside.careless()
    case.tls(
        case.ground.packages, inside.request(case.ground.hidden, "/"), sni=what.format(callback=case.ground.callback_at), context=context
    )
