"""By TCP a length stands before each message, and many messages in one stream."""

from typing import Any

from space_evaluate import inside
from space_evaluate.inside import Case
from space_evaluate.technique import BOTH, Technique

TECHNIQUE = Technique(
    tries="Send many questions in one stream, with lengths that lie, and let an unlisted name follow an allowed one.",
    claim="E3",
    defences=("DNS strictness",),
    stopped_by=("dns_malformed", "name_not_allowed", "no_policy", "guest:"),
    policies=BOTH,
    variants={one: one for one in ("one behind the other", "a length too long", "all at once")},
)


def framed(message: bytes, wrong: int = 0) -> bytes:
    """With its length before it."""
    return (len(message) + wrong).to_bytes(2, "big") + message


def attack(case: Case, what: Any) -> None:
    first, second = inside.question(case.ground.packages), inside.question(f"{case.token}.{case.ground.callback}")
    streams = {
        "one behind the other": lambda: framed(first) + framed(second),
        "a length too short": lambda: framed(second, -4),
        "a length too long": lambda: framed(first) + framed(second, 40),
        "all at once": lambda: framed(second) * 50,
    }
    got = case.connect(case.ground.gateway, 53, streams[what](), seconds=2)
    if what == "a length too long" and case.token.encode() not in got:
        case.refused("what is not whole is not answered")
