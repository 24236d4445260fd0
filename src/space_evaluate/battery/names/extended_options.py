"""EDNS carries options that resolvers pass on: client subnets, cookies, any bytes."""

import struct
from typing import Any

from space_evaluate import inside
from space_evaluate.inside import Case
from space_evaluate.technique import Technique

TECHNIQUE = Technique(
    tries="Ask for an allowed name with data in EDNS options, and in a version that nobody knows.",
    claim="E3",
    defences=("DNS strictness",),
    stopped_by=("dns_malformed", "guest:"),
    variants={"client subnet": [0, 8], "cookie": [0, 10], "private": [0, 65001], "version 1": [1, 10]},
    blank="a question is answered from a table: options are read over, and there is nobody to pass them on to",
)


def attack(case: Case, what: Any) -> None:
    version, code = what
    option = struct.pack("!HH", code, len(case.token)) + case.token.encode()
    opt = b"\0" + struct.pack("!HHBBHH", 41, 4096, 0, version, 0, len(option)) + option
    answer = case.send_query(inside.question(case.ground.packages, counts=(1, 0, 0, 1), more=opt))
    if answer is None or case.token.encode() not in answer["raw"]:
        case.refused("the option went nowhere")
