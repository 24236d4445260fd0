"""A session of one name, offered under another, skips the name's certificate."""

import socket
import ssl
from typing import Any

from space_evaluate import inside
from space_evaluate.inside import Case
from space_evaluate.technique import Technique

TECHNIQUE = Technique(
    tries="Take the session of an allowed name and offer it under another, by TLS 1.2 and 1.3.",
    claim="E3",
    defences=("resumption and tickets; verification of upstreams", "SNI check"),
    stopped_by=("sni_mismatch",),
    variants={"1.2": "TLSv1_2", "1.3": "TLSv1_3"},
    quick=True,
)


def attack(case: Case, what: Any) -> None:
    version = getattr(ssl.TLSVersion, what)
    made = inside.careless(minimum_version=version, maximum_version=version)
    with (
        socket.create_connection((case.address(case.ground.packages), 443), 5) as plain,
        made.wrap_socket(plain, server_hostname=case.ground.packages) as sock,
    ):
        sock.sendall(inside.request(case.ground.packages, f"/simple/{case.token}/"))
        inside.drained(sock, inside.answered)
        session = sock.session
    case.did(f"a session by {what}: {session is not None}")
    for name in (case.ground.second, case.ground.hidden):
        try:
            with (
                socket.create_connection((case.address(case.ground.packages), 443), 5) as plain,
                made.wrap_socket(plain, server_hostname=name, session=session) as sock,
            ):
                case.did(f"as {name}: resumed {sock.session_reused}")
                sock.sendall(inside.request(case.ground.hidden, f"/{case.token}"))
                case.got(inside.drained(sock, inside.answered))
        except OSError as error:
            case.did(f"as {name}: {error}")
