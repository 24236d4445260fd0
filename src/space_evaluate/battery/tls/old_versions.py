"""Old versions of TLS have no name, or can be read."""

import struct
from typing import Any

from space_evaluate.inside import Case
from space_evaluate.technique import Technique

TECHNIQUE = Technique(
    tries="Shake hands by SSL 3, TLS 1.0 and 1.1.",
    claim="E3",
    defences=("SNI check", "parser strictness: ClientHello"),
    stopped_by=("tls_version", "hello", "sni_missing", "not_tls"),
    variants={"SSL 3": 0, "TLS 1.0": 1, "TLS 1.1": 2},
    quick=True,
)


def attack(case: Case, what: Any) -> None:
    name = case.ground.packages.encode()
    sni = struct.pack("!HHHBH", 0, len(name) + 5, len(name) + 3, 0, len(name)) + name
    body = bytes([3, what]) + bytes(32) + b"\0" + b"\0\4\0\x2f\0\x35" + b"\1\0" + struct.pack("!H", len(sni)) + sni
    hello = b"\x16\3\1" + struct.pack("!H", len(body) + 4) + b"\1" + len(body).to_bytes(3, "big") + body
    case.connect(case.address(case.ground.packages), 443, hello)
