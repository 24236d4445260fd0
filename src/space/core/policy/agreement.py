"""Five names of one request must be one: of the address, of the handshake, of the request, of whom is dialled, of whose certificate counts.

The first comes from the synthetic address that the guest connected to, and decides; the last two are derived from it and from nothing that
the guest says. What is judged here is whether SNI and authority say the same. A disagreement is never repaired.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Literal

from space.core.policy.names import NameRefused, canon
from space.core.policy.paths import Path, PathRefused, normalise
from space.core.wire.clienthello import TLS12, TLS13, ClientHello
from space.core.wire.http1 import RequestHead

Disagreement = Literal[
    "sni_missing",
    "sni_invalid",
    "sni_mismatch",
    "tls_version",
    "authority_invalid",
    "authority_mismatch",
    "authority_port",
    "target_form",
    "target_authority",
    "path_invalid",
]
_AUTHORITY = re.compile(rb"([^\[\]:@/\\?#\s%]+)(?::(\d{1,5}))?\Z")
_ABSOLUTE = re.compile(rb"([A-Za-z][A-Za-z0-9+.-]*)://([^/?#]*)(.*)\Z", re.DOTALL)
# The reply's status: misdirected (RFC 9110, 15.5.20) where the names differ, bad request where there is none.
STATUS: dict[Disagreement, int] = {
    "authority_invalid": 400,
    "authority_mismatch": 421,
    "authority_port": 421,
    "target_form": 400,
    "target_authority": 421,
    "path_invalid": 400,
}


@dataclass(frozen=True, slots=True)
class Flow:
    """A connection as its accepting socket tells it: the name of the synthetic address, and the port. secure: TLS is spoken on it.

    authority: as it is written in requests, without a port that is the scheme's own.
    """

    name: str
    port: int
    secure: bool
    authority: bytes = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        usual = self.port == (443 if self.secure else 80)
        object.__setattr__(self, "authority", (self.name if usual else f"{self.name}:{self.port}").encode("ascii"))


def of_hello(flow: Flow, hello: ClientHello) -> Disagreement | None:
    """Whether a handshake is for the flow's name, in a version that is spoken. Sessions and early data that it offers are not taken up."""
    if not {TLS12, TLS13} & hello.versions:
        return "tls_version"
    if hello.server_name is None:
        return "sni_missing"
    try:
        name = canon(hello.server_name)
    except NameRefused:
        return "sni_invalid"
    return None if name == flow.name else "sni_mismatch"


def of_authority(flow: Flow, authority: bytes) -> Disagreement | None:
    """Whether `host[:port]` (a Host field, or :authority) is the flow's. A port that is left out is the scheme's own."""
    if authority == flow.authority:  # as most write it
        return None
    found = _AUTHORITY.match(authority)
    if found is None:
        return "authority_invalid"
    try:
        name = canon(found[1].decode("ascii"))
    except (NameRefused, UnicodeDecodeError):
        return "authority_invalid"
    if name != flow.name:
        return "authority_mismatch"
    port = int(found[2]) if found[2] else 443 if flow.secure else 80
    return None if port == flow.port else "authority_port"


def of_request(flow: Flow, head: RequestHead) -> Path | Disagreement:
    """The path of an HTTP/1.1 request that is for the flow, or what disagrees.

    Inside TLS a target has origin-form. In the clear the absolute form is taken as well, when its authority is the flow's too and says
    the same as Host: a server that believes the one and not the other must not be able to tell the difference.
    """
    wrong = of_authority(flow, head.host)
    if wrong is not None:
        return wrong
    target = head.target
    if not target.startswith(b"/"):
        found = None if flow.secure else _ABSOLUTE.match(target)
        if found is None or found[1].lower() != b"http":
            return "target_form"
        if of_authority(flow, found[2]) is not None:
            return "target_authority"
        target = found[3] if found[3].startswith(b"/") else b"/" + found[3]
    try:
        return normalise(target)
    except PathRefused:
        return "path_invalid"
