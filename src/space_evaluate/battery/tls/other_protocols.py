"""ALPN names what is spoken, and may name what nobody judges."""

import socket
from typing import Any

from space_evaluate import inside
from space_evaluate.inside import Case
from space_evaluate.technique import Technique

TECHNIQUE = Technique(
    tries="Agree on protocols that are not HTTP, or on none.",
    claim="E3",
    defences=("SNI check",),
    stopped_by=("alpn", "guest:"),
    variants={"h3": "h3", "ftp": "ftp", "imap": "imap", "dot": "dot", "acme-tls/1": "acme-tls/1", "http/0.9": "http/0.9"},
)


def attack(case: Case, what: Any) -> None:
    made = inside.careless()
    made.set_alpn_protocols([what])
    try:
        with (
            socket.create_connection((case.address(case.ground.packages), 443), 5) as plain,
            made.wrap_socket(plain, server_hostname=case.ground.packages) as sock,
        ):
            case.did(f"offered {what}, agreed on {sock.selected_alpn_protocol()}")
            if sock.selected_alpn_protocol() == what:
                raise RuntimeError(f"{what} was agreed on")
            case.refused("it was not agreed on")
    except OSError as error:
        case.did(f"offered {what}: {error}")
        case.refused(str(error))
