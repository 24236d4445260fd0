"""TLS by hand over memory: contexts that cannot resume, and one end of one connection as bytes in, bytes out.

A session of one name must never resume under another, and standard `ssl` has no switch for the session cache of TLS 1.2. So there are two
kinds of contexts toward a guest: TLS 1.3 only, without tickets, which has nothing to resume and is kept for its name; and TLS 1.2 only,
for a client that has no 1.3, made for one connection and thrown away.
"""

from __future__ import annotations

import contextlib
import ssl
from collections import OrderedDict
from collections.abc import Callable
from typing import Literal

from space.gateway import chains
from space.gateway.surroundings import Leaf

_PIECE = 16_384  # the most that one record holds, so one read takes a whole one
Protocol = Literal["http/1.1", "h2"]
_CIPHERS = "ECDHE+AESGCM:ECDHE+CHACHA20"  # of TLS 1.2 with HTTP/2 (RFC 9113, 9.2.2)
# A fatal alert in the clear, as it may come before any ServerHello (RFC 8446, 6).
_ALERT = b"\x15\x03\x03\x00\x02\x02"
UNRECOGNIZED_NAME, PROTOCOL_VERSION, NO_PROTOCOL, INTERNAL_ERROR, DECODE_ERROR = 112, 70, 120, 80, 50


def alert(description: int) -> bytes:
    """What a client that has sent its hello is told instead of a handshake."""
    return _ALERT + bytes([description])


def guest_context(leaf: Leaf, *, tls13: bool, protocol: Protocol = "http/1.1") -> ssl.SSLContext:
    """A context for exactly the leaf's name and one protocol. tls13: that version and no other; else TLS 1.2 and no other."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    version = ssl.TLSVersion.TLSv1_3 if tls13 else ssl.TLSVersion.TLSv1_2
    context.maximum_version = version
    context.minimum_version = version
    context.options |= ssl.OP_NO_TICKET | ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION
    context.num_tickets = 0
    context.set_alpn_protocols([protocol])
    if protocol == "h2" and not tls13:
        context.set_ciphers(_CIPHERS)
    chains.load(context, leaf.chain, leaf.key)
    return context


def upstream_context(bundle: str | None, *, h2: bool = False) -> ssl.SSLContext:
    """A context that verifies chain and name. bundle: PEM text of the authorities; None: the system's. h2: whether that is offered too."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # no create_default_context: it would obey SSLKEYLOGFILE
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION  # what resumes is for `space.gateway.sessions` to say
    context.hostname_checks_common_name = False
    context.set_alpn_protocols(["h2", "http/1.1"] if h2 else ["http/1.1"])
    if bundle is None:
        context.load_default_certs(ssl.Purpose.SERVER_AUTH)
    else:
        context.load_verify_locations(cadata=bundle)
    return context


_prepared: dict[tuple[str | None, bool], ssl.SSLContext] = {}


def prepare(bundle: str) -> None:
    """Contexts for that text of authorities, for every worker: made before these are forked, they cost each of them nothing."""
    for h2 in (False, True):
        _prepared[bundle, h2] = upstream_context(bundle, h2=h2)


class Contexts:
    """The contexts of TLS 1.3 of one sandbox, by name, each for some time; and those toward upstreams, by bundle."""

    def __init__(self, most: int, seconds: float) -> None:
        self._most = most
        self._seconds = seconds
        self._kept: OrderedDict[str, tuple[Leaf, dict[Protocol, ssl.SSLContext], float]] = OrderedDict()
        self._upstream: dict[str, ssl.SSLContext] = {}

    def kept(self, name: str, now: float, protocol: Protocol = "http/1.1") -> ssl.SSLContext | None:
        """The name's context of TLS 1.3, if there is one that is not too old."""
        found = self._fresh(name, now)
        return None if found is None else found[1].get(protocol)

    def leaf(self, name: str, now: float) -> Leaf | None:
        """The name's leaf, likewise."""
        found = self._fresh(name, now)
        return None if found is None else found[0]

    def keep(self, name: str, leaf: Leaf, context: ssl.SSLContext | None, now: float, protocol: Protocol = "http/1.1") -> None:
        """Keep them, as old as the leaf is; what was not used for longest goes."""
        found = self._fresh(name, now)
        contexts: dict[Protocol, ssl.SSLContext] = {}
        if found is not None and found[0] is leaf:
            contexts, now = found[1], found[2]
        if context is not None:
            contexts[protocol] = context
        self._kept[name] = (leaf, contexts, now)
        self._kept.move_to_end(name)
        if len(self._kept) > self._most:
            self._kept.popitem(last=False)

    def _fresh(self, name: str, now: float) -> tuple[Leaf, dict[Protocol, ssl.SSLContext], float] | None:
        found = self._kept.get(name)
        if found is None or now - found[2] > self._seconds:
            return None
        self._kept.move_to_end(name)
        return found

    def upstream(self, key: str | None, bundle: str | None, *, h2: bool = False) -> ssl.SSLContext:
        """The context for a bundle, made once for each text."""
        if (prepared := _prepared.get((bundle, h2))) is not None:
            return prepared
        text = f"{key}\0{bundle}\0{h2}"
        if text not in self._upstream:
            self._upstream[text] = upstream_context(bundle, h2=h2)
        return self._upstream[text]


class Tls:
    """One end of a connection. secured: the handshake is over. ended: the peer has said that it sends no more. out: what is to be sent.

    session: to be offered to an upstream. learn: gets the library's object when the connection is over.
    """

    __slots__ = ("_in", "_learn", "_object", "_read", "_write", "ended", "out", "secured")

    def __init__(
        self,
        context: ssl.SSLContext,
        *,
        server_side: bool,
        name: str | None = None,
        session: ssl.SSLSession | None = None,
        learn: Callable[[ssl.SSLObject], None] | None = None,
    ) -> None:
        self._in = ssl.MemoryBIO()
        self.out = ssl.MemoryBIO()
        self._learn = learn
        self._object = context.wrap_bio(self._in, self.out, server_side=server_side, server_hostname=name, session=session)
        within = getattr(self._object, "_sslobj", self._object)  # the methods that its own call, without its call
        self._read: Callable[[int], bytes] = within.read
        self._write: Callable[[bytes], int] = within.write
        self.secured = False
        self.ended = False

    @property
    def protocol(self) -> str | None:
        """What both have agreed to speak, once it is secured."""
        return self._object.selected_alpn_protocol()

    def start(self) -> bytes:
        """What a client says first."""
        self._handshake()
        return self.out.read()

    def receive(self, data: bytes) -> bytes:
        """The plain text in `data`. What is to be sent because of it: `outgoing`. ssl.SSLError."""
        self._in.write(data)
        if not self.secured:
            self._handshake()
            if not self.secured or not self._in.pending:
                return b""
        read, incoming = self._read, self._in
        try:
            first = read(_PIECE)
            if not first:
                self.ended = True
                return b""
            if not incoming.pending:  # an error for "no more" costs as much as a read
                return first
        except ssl.SSLWantReadError:
            return b""
        pieces = [first]
        try:
            while incoming.pending:
                piece = read(_PIECE)
                if not piece:
                    self.ended = True
                    break
                pieces.append(piece)
        except ssl.SSLWantReadError:
            pass
        return b"".join(pieces)

    def outgoing(self) -> bytes:
        """What the library wants sent."""
        return self.out.read() if self.out.pending else b""

    def send(self, data: bytes) -> bytes:
        """Plain text as it goes over the wire."""
        self._write(data)
        return self.out.read()

    def close(self) -> bytes:
        """The last thing said: close_notify."""
        with contextlib.suppress(ssl.SSLError):  # the peer's own is not waited for
            self._object.unwrap()
        return self.out.read()

    def over(self) -> None:
        """Nothing comes any more. An upstream's tickets have come by now."""
        learn, self._learn = self._learn, None
        if learn is not None and self.secured:
            learn(self._object)

    def _handshake(self) -> None:
        try:
            self._object.do_handshake()
        except ssl.SSLWantReadError:
            return
        self.secured = True
