"""Of two Host fields one parser takes the first and the other the last."""

from typing import Any

from space_evaluate.inside import Case
from space_evaluate.technique import Technique

TECHNIQUE = Technique(
    tries="Send two Host fields: the right one and another, in either order, in other spellings, or as a list.",
    claim="E3",
    defences=("parser strictness: HTTP/1.1; chunked and lengths", "authority check, ports agreement"),
    stopped_by=("host", "field", "authority_"),
    variants={
        "right, wrong": ["Host: {packages}", "Host: {hidden}"],
        "wrong, right": ["Host: {hidden}", "Host: {packages}"],
        "in capitals": ["HOST: {packages}", "host: {hidden}"],
        "a list": ["Host: {packages}, {hidden}"],
        "folded": ["Host: {packages}", " {hidden}"],
        "a space before the colon": ["Host: {packages}", "Host : {hidden}"],
        "a tab": ["Host:\t{packages}\t{hidden}"],
    },
    quick=True,
)


def attack(case: Case, what: Any) -> None:
    names = {"packages": case.ground.packages, "hidden": case.ground.hidden}
    lines = "\r\n".join(one.format(**names) for one in what)
    case.tls(case.ground.packages, f"GET /simple/{case.token}/ HTTP/1.1\r\n{lines}\r\n\r\n".encode())
