"""A name of a handshake is bytes."""

import struct
from typing import Any

from space_evaluate.inside import Case
from space_evaluate.technique import Technique

TECHNIQUE = Technique(
    tries="Put a NUL, other letters, an empty name, a list cut off, or one that lies about its length into the handshake.",
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
            "a NUL",
            "UTF-8",
            "empty",
            "cut off",
            "a length that lies",
            "bytes behind",
        )
    },
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
        "a NUL": record(hello(name_list(right + b"\0." + hidden))),
        "UTF-8": record(hello(name_list("p\u0430ckages.example.com".encode()))),
        "empty": record(hello(name_list(b""))),
        "cut off": record(hello(name_list(right)[:-3])),
        "a length that lies": record(hello(struct.pack("!H", 4) + name_list(right)[2:])),
        "bytes behind": record(hello(name_list(right) + hidden)),
    }
    case.connect(case.address(case.ground.packages), 443, hellos[what])
