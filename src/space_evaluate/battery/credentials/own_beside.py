"""Two credentials, of which one echoes, or counts."""

from typing import Any

from space_evaluate.inside import Case
from space_evaluate.technique import HOST_SECRET, Technique

TECHNIQUE = Technique(
    tries="Send a credential of one's own in the slot, twice, in other letters, and folded.",
    claim="C1",
    defences=("credentials: the slot is emptied", "credentials: a guest's own goes no further"),
    stopped_by=("guest:", "field", "foreign_credentials"),
    goals=(HOST_SECRET,),
    variants={
        "the same": ["Authorization: Bearer of-the-guest"],
        "twice": ["Authorization: of-the-guest", "Authorization: of-the-guest"],
        "in capitals": ["AUTHORIZATION: of-the-guest"],
        "underscores": ["Proxy_Authorization: of-the-guest"],
        "for a proxy": ["Proxy-Authorization: Basic of-the-guest"],
        "a key": ["X-Api-Key: of-the-guest"],
    },
)


def attack(case: Case, what: Any) -> None:
    got = case.http("api.example.com", "/echo", what, seconds=8)
    if b"of-the-guest" in got:
        raise RuntimeError("the guest's own went on beside the lent one")
    case.refused("its own went no further")
