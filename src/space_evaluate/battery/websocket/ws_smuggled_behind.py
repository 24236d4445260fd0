"""Behind a refused upgrade stands the next request, or what the guest calls so."""

from typing import Any

from space_evaluate import inside
from space_evaluate.inside import Case
from space_evaluate.technique import Technique

TECHNIQUE = Technique(
    tries="Send an upgrade that is refused, and behind it bytes for whoever believed it.",
    claim="E3",
    defences=("WebSocket rule",),
    stopped_by=("authority_mismatch", "websocket_not_allowed", "websocket", "path_not_allowed"),
    source="WebSocket smuggling by a wrong version, 2019",
)


UPGRADE = ["Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13", "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA=="]


def attack(case: Case, what: Any) -> None:
    names = case.ground
    data = inside.request(names.open, "/other", UPGRADE) + inside.request(names.hidden, f"/{case.token}")
    case.tls(names.open, data, until=lambda got: got.count(b"HTTP/1.1 ") > 1)
