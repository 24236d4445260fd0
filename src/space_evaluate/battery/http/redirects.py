"""A proxy that follows redirects goes where an allowed server sends it."""

from typing import Any

from space_evaluate.inside import Case
from space_evaluate.technique import Technique

TECHNIQUE = Technique(
    tries="Have an allowed server redirect to the attacker, to the host and to metadata, and see that nobody follows.",
    claim="E3",
    defences=("verdicts: every layer, every reading",),
    stopped_by=("name_not_allowed", "guest:"),
    variants={one: one for one in ("the attacker", "the host", "metadata")},
)


def attack(case: Case, what: Any) -> None:
    where = {
        "the attacker": f"https://{case.ground.callback}/{case.token}",
        "the host": f"http://{case.ground.host_at}/",
        "metadata": "http://169.254.169.254/",
    }[what]
    reply = f"HTTP/1.1 302 Found\r\nLocation: {where}\r\nRefresh: 0; url={where}\r\nContent-Length: 0\r\n\r\n"
    got = case.http(case.ground.open, f"/raw/{reply.encode().hex()}")
    if b" 302 " in got:
        case.refused("the redirect came back to the guest")
    case.query(case.ground.callback)
