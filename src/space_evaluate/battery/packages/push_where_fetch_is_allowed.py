"""Fetching and pushing are the same protocol."""

from typing import Any

from space_evaluate.inside import Case
from space_evaluate.technique import Technique

TECHNIQUE = Technique(
    tries="Push by the smart protocol of git to a host where reading is allowed.",
    claim="E3",
    defences=("verdicts: every layer, every reading",),
    stopped_by=("path_not_allowed", "method_not_allowed"),
    variants={
        "asks": ["GET", "/project.git/info/refs?service=git-receive-pack"],
        "pushes": ["POST", "/project.git/git-receive-pack"],
        "in an allowed path": ["POST", "/files/project.git/git-receive-pack"],
    },
)


def attack(case: Case, what: Any) -> None:
    case.http(case.ground.packages, what[1], ["Content-Type: application/x-git-receive-pack-request"], method=what[0], body=b"0000")
