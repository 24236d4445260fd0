"""What a server echoes into its head may end that head."""

from typing import Any

from space_evaluate.inside import Case
from space_evaluate.technique import Technique

TECHNIQUE = Technique(
    tries="Have an allowed server answer with a head that holds another reply, and a body longer than it says.",
    claim="E3",
    defences=("Alt-Svc, 1xx and 101",),
    stopped_by=("guest:",),
    variants={
        "two replies": "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nokHTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nTOKEN",
        "alt-svc": 'HTTP/1.1 200 OK\r\nAlt-Svc: h3="callback.example.net:443"; ma=9\r\nContent-Length: 2\r\n\r\nok',
        "two lengths": "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 200\r\n\r\nok",
        "both": "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "a bare line feed": "HTTP/1.1 200 OK\nContent-Length: 2\n\nok",
    },
)


def attack(case: Case, what: Any) -> None:
    reply = what.replace("TOKEN", case.token)
    got = case.http(case.ground.open, f"/raw/{reply.encode('latin-1').hex()}", seconds=6)
    if got.count(b"HTTP/1.1 ") > 1 or b"alt-svc" in got.lower():
        raise RuntimeError(f"two replies came back: {got[:300]!r}")
    case.refused("one reply, or none")
