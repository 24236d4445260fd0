"""The same in HTTP/2."""

from typing import Any

from space_evaluate import inside
from space_evaluate.inside import Case
from space_evaluate.technique import HOST_SECRET, Technique

TECHNIQUE = Technique(
    tries="Ask for an echo in HTTP/2.",
    claim="C1",
    defences=("credentials: tripwire",),
    stopped_by=("guest:", "echo", "tripwire"),
    goals=(HOST_SECRET,),
    variants={one or "plain": one for one in ("", "base64")},
)


def attack(case: Case, what: Any) -> None:
    got = case.tls(
        "api.example.com",
        inside.PREFACE + inside.h2_request("api.example.com", f"/echo/{what}"),
        alpn=["h2"],
        until=inside.h2_answered,
        seconds=8,
    )
    case.refused(f"{len(got)} bytes came without it")
