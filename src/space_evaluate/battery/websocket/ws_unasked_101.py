"""A server that says 101 to a plain request turns the connection into a tunnel."""

from typing import Any

from space_evaluate.inside import Case
from space_evaluate.technique import Technique

TECHNIQUE = Technique(
    tries="Have an allowed server answer 101 to a request that asked for nothing, or with a wrong accept.",
    claim="E3",
    defences=("Alt-Svc, 1xx and 101",),
    stopped_by=("upgrade", "status_line", "reply", "guest:", "switching", "101", "bad_reply", "unasked"),
    variants={"unasked": 0, "a wrong accept": 1},
)


UPGRADE = ["Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13", "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA=="]


def attack(case: Case, what: Any) -> None:
    reply = "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: wrong\r\n\r\n"
    got = case.http(case.ground.open, f"/raw/{reply.encode().hex()}", UPGRADE if what else [], seconds=6)
    if b" 101 " in got:
        raise RuntimeError("the connection was switched")
    case.refused("it was not switched")
