"""Names in other scripts look the same, and a library that folds them makes them the same."""

import struct
from typing import Any

from space_evaluate.inside import Case
from space_evaluate.technique import Technique

TECHNIQUE = Technique(
    tries="Ask for an allowed name in letters of another script, in full width, and in punycode that decodes to it.",
    claim="E3",
    defences=("names: canon",),
    stopped_by=("name_not_allowed", "dns_malformed", "name_invalid"),
    variants={
        "cyrillic": "pаckages.example.com",
        "full width": "ｐａｃkages.example.com",
        "punycode of ASCII": "xn--packages-.example.com",
        "a full stop of another script": "packages。example.com",
        "soft hyphen": "pack\xadages.example.com",
    },
)


def labels(name: str) -> bytes:
    """As bytes of UTF-8."""
    parts = [one.encode() for one in name.split(".")]
    return b"".join(bytes([len(one)]) + one for one in parts) + b"\0"


def attack(case: Case, what: Any) -> None:
    case.send_query(struct.pack("!6H", 7, 0x0100, 1, 0, 0, 0) + labels(what) + b"\0\1\0\1")
