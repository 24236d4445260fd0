"""A service that echoes what it was sent tells the guest its own credential."""

from typing import Any

from space_evaluate.inside import Case
from space_evaluate.technique import HOST_SECRET, Technique

TECHNIQUE = Technique(
    tries="Ask a service that echoes the request for it, in plain and in forms that a search may miss.",
    claim="C1",
    defences=("credentials: tripwire",),
    stopped_by=("guest:", "echo", "tripwire"),
    goals=(HOST_SECRET,),
    variants={one or "plain": one for one in ("", "hex", "HEX", "base64", "urlsafe", "shifted", "percent", "json")},
    quick=True,
)


def attack(case: Case, what: Any) -> None:
    got = case.http("api.example.com", f"/echo/{what}", seconds=8)
    if not got.startswith(b"HTTP/1.1 200"):
        raise RuntimeError(f"no echo came: {got[:200]!r}")
    case.refused("the echo came without it")
