"""A connection that became a WebSocket is not judged any more by whoever judged its first request."""

from typing import Any

from space_evaluate.inside import Case
from space_evaluate.technique import Technique

TECHNIQUE = Technique(
    tries="Ask for a WebSocket where no rule allows one.",
    claim="E3",
    defences=("WebSocket rule",),
    stopped_by=("websocket_not_allowed", "path_not_allowed"),
    variants={"at packages": ["packages", "/simple/"], "another path": ["open", "/other"], "around the path": ["open", "/socket/../x"]},
    quick=True,
)


UPGRADE = ["Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13", "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA=="]


def attack(case: Case, what: Any) -> None:
    case.http(getattr(case.ground, what[0]), what[1], UPGRADE)
