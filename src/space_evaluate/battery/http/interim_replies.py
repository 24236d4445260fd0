"""Before its reply a server may say that it has not finished, without end."""

from typing import Any

from space_evaluate.inside import Case
from space_evaluate.technique import Technique

TECHNIQUE = Technique(
    tries="Have an allowed server answer with early hints for the attacker's name, and hundreds of interim replies.",
    claim="E3",
    defences=("Alt-Svc, 1xx and 101",),
    stopped_by=("guest:", "interim", "status_line", "too_many"),
    variants={"one": 1, "ten": 10, "too many": 100},
)


def attack(case: Case, what: Any) -> None:
    hint = "HTTP/1.1 103 Early Hints\r\nLink: <https://callback.example.net/x>; rel=preload\r\n\r\n"
    reply = hint * what + "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
    got = case.http(
        case.ground.open,
        f"/raw/{reply.encode().hex()}" if what < 30 else "/raw/" + (hint * 15 + "HTTP/1.1 102 P\r\n\r\n" * 5).encode().hex(),
        seconds=6,
    )
    if b" 103 " in got:
        raise RuntimeError("an interim reply came through")
    case.refused("no interim reply came")
