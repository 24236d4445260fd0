"""What scripts share that run in a guest as root: what they were asked on stdin, raw frames out, HTTP over TLS by hand."""

from __future__ import annotations

import json
import socket
import ssl
import struct
import sys
import time
from collections.abc import Callable
from functools import lru_cache
from typing import Any

INTERFACE = next(name for _, name in socket.if_nameindex() if name != "lo")
GATEWAY = "10.0.0.1"


def asked() -> Any:
    return json.loads(sys.stdin.read())


def tell(found: object) -> None:
    print(json.dumps(found), flush=True)


def raw() -> socket.socket:
    sock = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    sock.bind((INTERFACE, 0))
    return sock


def question(name: str, ident: int = 7, kind: int = 1) -> bytes:
    """A query for an address."""
    labels = b"".join(bytes([len(one)]) + one.encode() for one in name.split("."))
    return struct.pack("!HHHHHH", ident, 0x0100, 1, 0, 0, 0) + labels + b"\0" + struct.pack("!HH", kind, 1)


def ask(name: str, ident: int = 7, kind: int = 1, seconds: float = 3.0, source_port: int = 0) -> dict[str, Any] | None:
    """Code, extended code and addresses of the gateway's answer; None for silence."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.settimeout(seconds)
        sock.bind(("0.0.0.0", source_port))
        sock.sendto(question(name, ident, kind), (GATEWAY, 53))
        try:
            data = sock.recv(4096)
        except TimeoutError:
            return None
    code, answers = data[3] & 15, struct.unpack("!H", data[6:8])[0]
    return {"code": code, "addresses": [socket.inet_ntoa(data[-4:])] if code == 0 and answers and kind == 1 else []}


@lru_cache
def context(**changes: Any) -> ssl.SSLContext:
    made = ssl.create_default_context()
    for key, value in changes.items():
        setattr(made, key, value)
    return made


def exchange(
    address: str,
    sni: str | None,
    data: bytes,
    port: int = 443,
    alpn: tuple[str, ...] = (),
    trusting: bool = True,
    more: Callable[[bytes], bool] | None = None,
) -> dict[str, Any]:
    """What came back for these bytes: {"answer", "error", "seconds", ...}; sni None sends no name."""
    began = time.monotonic()
    found: dict[str, Any] = {"answer": "", "error": "", "alpn": None}
    made = context() if trusting and sni is not None else ssl._create_unverified_context()
    made.set_alpn_protocols(list(alpn or ("http/1.1",)))
    try:
        with socket.create_connection((address, port), 10) as plain:
            plain.settimeout(10)
            with made.wrap_socket(plain, server_hostname=sni) as sock:
                found["alpn"] = sock.selected_alpn_protocol()
                sock.sendall(data)
                got = b""
                while True:
                    piece = sock.recv(65536)
                    got += piece
                    if not piece or (not alpn and done(got)):
                        break
                    if alpn and len(got) > 17 and more is not None and more(got):
                        break
                found["answer"] = got.decode("latin-1")
    except (OSError, ssl.SSLError) as error:
        found["error"] = f"{type(error).__name__}: {error}"
    found["seconds"] = round(time.monotonic() - began, 3)
    return found


def done(got: bytes) -> bool:
    """Whether a reply with a length is whole."""
    head, end, body = got.partition(b"\r\n\r\n")
    lower = head.lower()
    return bool(end) and b"content-length: " in lower and len(body) >= int(lower.split(b"content-length: ")[1].split(b"\r\n")[0])


def get(authority: str, target: str = "/", more: str = "") -> bytes:
    return f"GET {target} HTTP/1.1\r\nHost: {authority}\r\n{more}\r\n".encode()
