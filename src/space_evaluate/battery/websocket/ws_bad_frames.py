"""Frames of a WebSocket are judged as well, or they are a tunnel for anything."""

from typing import Any

from space_evaluate import inside
from space_evaluate.inside import Case
from space_evaluate.technique import Technique

TECHNIQUE = Technique(
    tries="Over an allowed WebSocket send frames that are not masked, too large, reserved, or no frames at all.",
    claim="E3",
    defences=("WebSocket rule",),
    stopped_by=("websocket", "frame", "unmasked", "websocket_frame", "guest:", "ws_", "reserved"),
    variants={one: one for one in ("not masked", "too large", "reserved bits", "no frame", "a reserved opcode")},
)


UPGRADE = ["Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13", "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA=="]


def attack(case: Case, what: Any) -> None:
    frames = {
        "not masked": b"\x82\x05hello",
        "too large": b"\x82\xff" + b"\x7f" + b"\xff" * 7 + bytes(4),
        "reserved bits": b"\xf2\x85" + bytes(4) + b"hello",
        "no frame": b"GET / HTTP/1.1\r\nHost: hidden.example.net\r\n\r\n",
        "a reserved opcode": b"\x8b\x85" + bytes(4) + b"hello",
    }
    got = case.http(case.ground.open, "/socket", UPGRADE, until=lambda got: b" 101 " in got)
    if b" 101 " not in got:
        raise RuntimeError(f"no WebSocket: {got[:200]!r}")
    got = case.tls(case.ground.open, inside.request(case.ground.open, "/socket", UPGRADE) + frames[what], until=lambda got: len(got) > 600)
    if b"\x81\x02ok" in got:
        raise RuntimeError("the frame went through")
    case.refused(f"ended: {got[-40:]!r}")
