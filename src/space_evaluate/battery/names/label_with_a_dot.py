"""Libraries print a label that holds a dot as two labels."""

import struct
from typing import Any

from space_evaluate.inside import Case
from space_evaluate.technique import Technique

TECHNIQUE = Technique(
    tries="Ask for an allowed name in one label, so that what is judged and what is printed are two names.",
    claim="E3",
    defences=("DNS strictness",),
    stopped_by=("dns_malformed", "name_invalid"),
    variants={
        "one label": "\x14packages.example.com\x00",
        "two labels": "\rhidden.example\x03net\x00",
        "a NUL": "\tpackages\x00\x07example\x03com\x00",
        "a backslash": "\npackages\\.\x07example\x03com\x00",
        "a line feed": "\tpackages\n\x07example\x03com\x00",
    },
    quick=True,
)


def attack(case: Case, what: Any) -> None:
    case.send_query(struct.pack("!6H", 7, 0x0100, 1, 0, 0, 0) + what.encode("latin-1") + b"\0\1\0\1")
