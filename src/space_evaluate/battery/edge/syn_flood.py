"""Half a connection costs whoever keeps it."""

from typing import Any

from space_evaluate import inside
from space_evaluate.inside import Case
from space_evaluate.technique import Technique

TECHNIQUE = Technique(
    tries="Send twenty thousand SYNs from ports in turn to an allowed name, and go on with a legitimate request.",
    claim="G3",
    defences=("limits",),
    stopped_by=("guest:",),
    seconds=60.0,
    alone=True,
)


def attack(case: Case, what: Any) -> None:
    ground = case.ground

    to = case.address(ground.packages)
    frames = [inside.ether(inside.tcp(to, 443, source_port=1024 + at * 3, seq=at)) for at in range(2000)]
    case.frames(*frames, rounds=3)
    got = case.http(ground.packages, f"/simple/{case.token}/", seconds=15)
    if not got.startswith(b"HTTP/1.1 200"):
        raise RuntimeError("a legitimate request did not come through")
    case.refused("legitimate requests go on")
