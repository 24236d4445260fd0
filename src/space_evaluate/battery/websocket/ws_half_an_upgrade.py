"""Half of an upgrade is one for one parser and none for the other."""

from typing import Any

from space_evaluate.inside import Case
from space_evaluate.technique import Technique

TECHNIQUE = Technique(
    tries="Leave out or double parts of the upgrade: its key, its version, its Connection.",
    claim="E3",
    defences=("WebSocket rule",),
    stopped_by=("websocket", "upgrade", "field", "connection", "websocket_", "guest:"),
    variants={
        "no key": ["Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13"],
        "version 8": [
            "Connection: Upgrade",
            "Upgrade: websocket",
            "Sec-WebSocket-Version: 8",
            "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==",
        ],
        "a short key": ["Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13", "Sec-WebSocket-Key: AAAA"],
        "two upgrades": [
            "Connection: Upgrade",
            "Upgrade: websocket, h2c",
            "Sec-WebSocket-Version: 13",
            "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==",
        ],
        "another protocol": ["Connection: Upgrade", "Upgrade: tcp"],
    },
)


UPGRADE = ["Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13", "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA=="]


def attack(case: Case, what: Any) -> None:
    got = case.http(case.ground.open, "/socket", what)
    if b" 101 " in got:
        raise RuntimeError("half an upgrade was taken")
    case.refused("it was a request like others")
