"""What techniques use in a guest: the case that they try, names and connections by hand, raw frames. Standard library only.

An attempt that does not say what it did (`case.did`) is an error, not a success of the wall: what was never tried was not stopped.
"""

from __future__ import annotations

import contextlib
import json
import socket
import ssl
import struct
import sys
import time
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

from space_evaluate.technique import Goal, Ground, Policy

GUEST_MAC, HOST_MAC, BROADCAST = bytes.fromhex("525400000002"), bytes.fromhex("525400000001"), b"\xff" * 6
A, NS, CNAME, SOA, NULL, PTR, MX, TXT, AAAA, SRV, SVCB, HTTPS, AXFR, ANY = 1, 2, 5, 6, 10, 12, 15, 16, 28, 33, 64, 65, 252, 255
PATIENCE = 4.0  # seconds for an answer


class Case:
    """One attempt. token: random letters that are in everything which it sends. goal, policy: what is tried, under which policy."""

    def __init__(self, number: int, token: str, goal: Goal, policy: Policy, ground: Ground) -> None:
        self.number, self.token, self.goal, self.policy, self.ground = number, token, goal, policy, ground

    def did(self, words: str) -> None:
        """Evidence: what was sent, and what came of it."""
        self._say(did=words[:400])

    def got(self, data: bytes | str) -> None:
        """Everything that came in, for the host to look for its secret in."""
        raw = data.encode("utf-8", "replace") if isinstance(data, str) else data
        self._say(got=raw[:65_536].hex())

    def refused(self, words: str) -> None:
        """That the guest itself was told no, where nobody outside hears of it."""
        self._say(refused=words[:200])

    def _say(self, **what: str) -> None:
        print(json.dumps({"n": self.number, **what}), flush=True)

    @property
    def target(self) -> tuple[str, int]:
        """Where the goal is, as an address and a port."""
        ground = self.ground
        return (ground.callback_at, 443) if self.goal == "callback" else (ground.host_at, ground.host_port)

    # -- names -----------------------------------------------------------------------------------------------------
    def query(self, name: str, kind: int = A, **how: Any) -> dict[str, Any] | None:
        """Ask the gateway; {"code", "addresses", "raw"}, or None for silence. The attempt has done this."""
        answer = ask(question(name, kind), self.ground.gateway, **how)
        self.did(f"asked for {name} type {kind}: {told(answer)}")
        if answer is not None:
            self.got(answer["raw"])
        return answer

    def send_query(self, message: bytes, to: str = "", **how: Any) -> dict[str, Any] | None:
        """The same for bytes of any kind."""
        answer = ask(message, to or self.ground.gateway, **how)
        self.did(f"sent {len(message)} bytes of DNS {message[:48].hex()}: {told(answer)}")
        if answer is not None:
            self.got(answer["raw"])
        return answer

    def address(self, name: str) -> str:
        """What the gateway gives for an allowed name; RuntimeError when it is none."""
        if self.ground.proxy_port:
            return name  # a proxy is told names
        for _ in range(3):
            answer = ask(question(name), self.ground.gateway)
            if answer is not None and answer["addresses"]:
                return str(answer["addresses"][0])
        raise RuntimeError(f"no address for {name}: {answer}")

    # -- connections -----------------------------------------------------------------------------------------------
    def dial(self, address: str, port: int, seconds: float = PATIENCE) -> socket.socket:
        """A connection, over the proxy where there is one. OSError."""
        proxy = self.ground.proxy_port
        sock = socket.create_connection((self.ground.gateway, proxy) if proxy else (address, port), seconds)
        sock.settimeout(seconds)
        if proxy:
            sock.sendall(f"CONNECT {address}:{port} HTTP/1.1\r\nHost: {address}:{port}\r\n\r\n".encode())
            got = drained(sock, lambda got: b"\r\n\r\n" in got)
            if b" 200 " not in got.split(b"\r\n")[0]:
                sock.close()
                raise ConnectionRefusedError(f"the proxy said {got[:40]!r}")
        return sock

    def connect(self, address: str, port: int, data: bytes = b"", *, seconds: float = PATIENCE) -> bytes:
        """TCP: send, and read what comes; what happened is evidence."""
        got = b""
        try:
            with self.dial(address, port, seconds) as sock:
                sock.sendall(data)
                got = drained(sock, answered if data else None)
            self.did(f"connected to {address}:{port}, sent {len(data)} bytes, got {got[:80]!r}")
        except OSError as error:
            self.did(f"tried {address}:{port}: {type(error).__name__} {error}")
        self.got(got)
        return got

    def tls(
        self,
        to: str,
        data: bytes,
        *,
        sni: str | None = "",
        port: int = 443,
        alpn: Sequence[str] = ("http/1.1",),
        context: ssl.SSLContext | None = None,
        until: Callable[[bytes], bool] | None = None,
        seconds: float = PATIENCE,
    ) -> bytes:
        """TLS to a name (its address from the gateway) or an address, with any SNI (None: without), and what came for these bytes."""
        address = to if to.replace(".", "").isdigit() else self.address(to)
        name = to if sni == "" else sni
        made = context or (trusting() if name == to else careless())
        made.set_alpn_protocols(list(alpn))
        got = b""
        try:
            with self.dial(address, port, seconds) as plain, made.wrap_socket(plain, server_hostname=name) as sock:
                sock.sendall(data)
                got = drained(sock, until or answered)
            self.did(f"TLS to {to}:{port} as {name}, sent {data[:60]!r}, got {got[:80]!r}")
        except OSError as error:
            self.did(f"TLS to {to}:{port} as {name}: {type(error).__name__} {error}")
        self.got(got)
        return got

    def http(
        self, name: str, target: str = "/", fields: Sequence[str] = (), *, method: str = "GET", body: bytes = b"", **how: Any
    ) -> bytes:
        """One request in HTTP/1.1 over TLS to that name; `host=` says another in the field."""
        host = how.pop("host", name)
        return self.tls(name, request(host, target, fields, method=method, body=body), **how)

    # -- frames ----------------------------------------------------------------------------------------------------
    def frames(self, *frames: bytes, rounds: int = 1) -> None:
        """Put them on the wire as they are."""
        sent = 0
        with link() as sock:
            for _ in range(rounds):
                for one in frames:
                    sock.send(one)
                    sent += 1
        self.did(f"sent {sent} frames, the first {frames[0][:40].hex()}")


# -- DNS -------------------------------------------------------------------------------------------------------------
def wire_name(name: str) -> bytes:
    """Its labels."""
    return b"".join(bytes([len(one)]) + one.encode("latin-1") for one in name.split(".") if one) + b"\0"


def question(
    name: str, kind: int = A, *, ident: int = 7, flags: int = 0x0100, more: bytes = b"", counts: tuple[int, ...] = (1, 0, 0, 0)
) -> bytes:
    """A query."""
    return struct.pack("!6H", ident, flags, *counts) + wire_name(name) + struct.pack("!HH", kind, 1) + more


def answer_of(name: str, address: str, ident: int = 7) -> bytes:
    """A reply which says that the name is at the address."""
    return (
        question(name, ident=ident, flags=0x8580, counts=(1, 1, 0, 0))
        + b"\xc0\x0c"
        + struct.pack("!HHIH", 1, 1, 86_400, 4)
        + socket.inet_aton(address)
    )


def ask(
    message: bytes, to: str, *, port: int = 53, tcp: bool = False, seconds: float = PATIENCE, source_port: int = 0
) -> dict[str, Any] | None:
    """Send a query; what came for it."""
    try:
        if tcp:
            with socket.create_connection((to, port), seconds) as stream:
                stream.settimeout(seconds)
                stream.sendall(struct.pack("!H", len(message)) + message)
                data = drained(stream, lambda got: len(got) >= 2 and len(got) >= 2 + struct.unpack("!H", got[:2])[0])[2:]
        else:
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
                sock.settimeout(seconds)
                sock.bind(("0.0.0.0", source_port))
                sock.connect((to, port))
                sock.send(message)
                data = sock.recv(65_535)
    except OSError:
        return None
    if len(data) < 12:
        return None
    code, answers = data[3] & 15, struct.unpack("!H", data[6:8])[0]
    kind = struct.unpack("!H", message[-4:-2])[0] if len(message) > 16 else 0
    at = data.find(b"\xc0\x0c\0\1\0\1")
    found = [socket.inet_ntoa(data[at + 12 : at + 16])] if code == 0 and answers and kind in (A, 0) and at > 0 else []
    if code == 0 and answers and not found and kind == A:
        found = [socket.inet_ntoa(data[-4:])]
    return {"code": code, "addresses": found, "raw": data}


def told(answer: dict[str, Any] | None) -> str:
    """In words."""
    return "silence" if answer is None else f"code {answer['code']} {answer['addresses']}"


# -- HTTP ------------------------------------------------------------------------------------------------------------
def request(
    host: str, target: str = "/", fields: Sequence[str] = (), *, method: str = "GET", body: bytes = b"", version: str = "HTTP/1.1"
) -> bytes:
    """Bytes of a request."""
    lines = [f"{method} {target} {version}", *([f"Host: {host}"] if host else []), *fields]
    if body and not any(one.lower().startswith(("content-length", "transfer-encoding")) for one in fields):
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + body


def answered(got: bytes) -> bool:
    """Whether a reply of HTTP/1.1 with a length is whole."""
    head, end, body = got.partition(b"\r\n\r\n")
    lower = head.lower()
    return bool(end) and b"content-length: " in lower and len(body) >= int(lower.split(b"content-length: ")[1].split(b"\r\n")[0])


def drained(sock: socket.socket, until: Callable[[bytes], bool] | None = None, most: int = 1 << 20) -> bytes:
    """What comes, to its end, or until it is enough, or nothing comes in the socket's time."""
    got = b""
    with contextlib.suppress(OSError):
        while len(got) < most and not (until is not None and until(got)):
            piece = sock.recv(65_536)
            if not piece:
                break
            got += piece
    return got


@lru_cache
def trusting() -> ssl.SSLContext:
    """As a client that verifies: one a process, for to read the guest's authorities takes longer than a handshake."""
    return ssl.create_default_context()


def careless(**changes: Any) -> ssl.SSLContext:
    """As one that believes any certificate."""
    made = ssl._create_unverified_context()
    for key, value in changes.items():
        setattr(made, key, value)
    return made


# -- HTTP/2 ----------------------------------------------------------------------------------------------------------
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(3) + b"\x04\0" + bytes(4)
DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(10)


def h2_frame(kind: int, payload: bytes = b"", *, flags: int = 0, stream: int = 0) -> bytes:
    """A frame."""
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


def h2_fields(fields: Sequence[tuple[str, str]]) -> bytes:
    """A block of literal fields, each spelled out; 126 bytes of a value fit a length of one byte, longer ones get more."""

    def text(value: str) -> bytes:
        raw = value.encode("latin-1")
        if len(raw) < 127:
            return bytes([len(raw)]) + raw
        left, out = len(raw) - 127, b"\x7f"
        while left >= 128:
            out += bytes([left % 128 + 128])
            left //= 128
        return out + bytes([left]) + raw

    return b"".join(b"\0" + text(name) + text(value) for name, value in fields)


def h2_request(
    authority: str,
    path: str = "/",
    more: Sequence[tuple[str, str]] = (),
    *,
    method: str = "GET",
    scheme: str = "https",
    stream: int = 1,
    body: bytes | None = None,
) -> bytes:
    """HEADERS of a request, and its body; `PREFACE` comes before the first."""
    pseudo = [(":method", method), (":scheme", scheme), (":authority", authority), (":path", path)]
    head = h2_frame(HEADERS, h2_fields([*pseudo, *more]), flags=4 | (body is None), stream=stream)
    return head + (b"" if body is None else h2_frame(DATA, body, flags=1, stream=stream))


def h2_answered(got: bytes, stream: int = 1) -> bool:
    """A whole answer to that stream, a reset of it, or a farewell."""
    at = 0
    while at + 9 <= len(got):
        length, kind, flags = int.from_bytes(got[at : at + 3], "big"), got[at + 3], got[at + 4]
        of = int.from_bytes(got[at + 5 : at + 9], "big") & 0x7FFFFFFF
        if at + 9 + length > len(got):
            return False
        if kind == GOAWAY or (of == stream and (kind == RST_STREAM or (kind in (DATA, HEADERS) and flags & 1))):
            return True
        at += 9 + length
    return False


# -- frames ----------------------------------------------------------------------------------------------------------
def interface() -> str:
    """The guest's link to the outside."""
    return next(name for _, name in socket.if_nameindex() if name != "lo")


def link() -> socket.socket:
    """A raw socket on it."""
    sock = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    sock.bind((interface(), 0))
    return sock


def ether(payload: bytes, *, kind: int = 0x0800, source: bytes = GUEST_MAC, target: bytes = HOST_MAC) -> bytes:
    """A frame of Ethernet."""
    return target + source + struct.pack("!H", kind) + payload


def checksum(data: bytes) -> int:
    """Of IPv4, TCP and UDP."""
    data += bytes(len(data) % 2)
    total: int = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def ipv4(
    payload: bytes,
    *,
    to: str,
    source: str = "10.0.0.2",
    protocol: int = 17,
    options: bytes = b"",
    fragment: int = 0x4000,
    version: int = 4,
    ttl: int = 64,
) -> bytes:
    """A packet of IPv4."""
    words = 5 + len(options) // 4
    head = struct.pack("!BBHHHBBH", version << 4 | words, 0, 4 * words + len(payload), 1, fragment, ttl, protocol, 0)
    head += socket.inet_aton(source) + socket.inet_aton(to) + options
    return head[:10] + struct.pack("!H", checksum(head)) + head[12:] + payload


def udp(data: bytes, *, to: str, port: int, source: str = "10.0.0.2", source_port: int = 40_000, **header: Any) -> bytes:
    """A datagram in its packet."""
    datagram = struct.pack("!4H", source_port, port, 8 + len(data), 0) + data
    pseudo = socket.inet_aton(source) + socket.inet_aton(to) + struct.pack("!BBH", 0, 17, len(datagram))
    total = checksum(pseudo + datagram) or 0xFFFF
    return ipv4(datagram[:6] + struct.pack("!H", total) + datagram[8:], to=to, source=source, protocol=17, **header)


def tcp(
    to: str,
    port: int,
    *,
    flags: int = 2,
    source: str = "10.0.0.2",
    source_port: int = 40_000,
    seq: int = 1000,
    ack: int = 0,
    data: bytes = b"",
    **header: Any,
) -> bytes:
    """A segment in its packet; a SYN unless flags say something else."""
    segment = struct.pack("!HHIIBBHHH", source_port, port, seq, ack, 5 << 4, flags, 64_000, 0, 0) + data
    pseudo = socket.inet_aton(source) + socket.inet_aton(to) + struct.pack("!BBH", 0, 6, len(segment))
    segment = segment[:16] + struct.pack("!H", checksum(pseudo + segment)) + segment[18:]
    return ipv4(segment, to=to, source=source, protocol=6, **header)


def soon(what: Callable[[], object], seconds: float = PATIENCE) -> bool:
    """Whether it comes true in time."""
    until = time.monotonic() + seconds
    while not what():
        if time.monotonic() > until:
            return False
        time.sleep(0.02)
    return True


def log(words: str) -> None:
    """To the report of a technique that fails."""
    print(words, file=sys.stderr, flush=True)
