"""Requests that name a sandbox, by headers or by host: let in by what opens the sandbox, and handed to who answers for its port.

    who is meant -> is it there -> token, or signature -> room -> awake -> envd | ingress

No API key is asked here: a sandbox's own token opens it and nothing else. What is not there, not theirs, or at rest is one answer.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, NamedTuple
from urllib.parse import parse_qsl

from starlette.types import Scope

from space.config.settings import Settings
from space.control.e2b import wake
from space.control.e2b.faults import Away
from space.control.e2b.ids import ENVD_PORT, to_ours
from space.control.e2b.seat import Seat
from space.control.services import Services
from space.model.errors import InvalidArgument, NotFound, Unauthenticated

# Of E2B's daemon, and for its own orchestrator only.
_HIDDEN: Final = frozenset({"/init", "/freeze", "/unfreeze", "/fsfreeze", "/fsthaw", "/collapse", "/upgrade"})
# What only looks: no record of it is kept.
LOOKING: Final = frozenset(
    {
        "/health", "/metrics", "/envs", "/process.Process/List", "/process.Process/Connect", "/filesystem.Filesystem/Stat",
        "/filesystem.Filesystem/ListDir", "/filesystem.Filesystem/WatchDir", "/filesystem.Filesystem/CreateWatcher",
        "/filesystem.Filesystem/GetWatcherEvents", "/filesystem.Filesystem/RemoveWatcher",
    }
)  # fmt: skip
_HOST = re.compile(r"(?P<port>[0-9]{1,5})-(?P<sandbox>[a-z0-9]{1,64})\Z")


class Address(NamedTuple):
    """What a request names. sandbox: as E2B's clients know it."""

    sandbox: str
    port: int


def hostname(header: str) -> str:
    """A Host header's name, without its port."""
    return header.rsplit(":", 1)[0].lower() if not header.endswith("]") else header.lower()


def of_host(host: str, domain: str) -> Address | None:
    """`<port>-<id>.<domain>`; None for any other host."""
    if not domain or not host.endswith("." + domain):
        return None
    match = _HOST.match(host.removesuffix("." + domain))
    return None if match is None else Address(match["sandbox"], _port(match["port"]))


def addressed(settings: Settings, head: Mapping[bytes, bytes]) -> Address | None:
    """Which sandbox and port a request is for; None: for this server. InvalidArgument for headers that name none."""
    found = of_host(hostname(head.get(b"host", b"").decode("latin-1")), settings.domain)
    if found is not None:
        return found
    sandbox = head.get(b"e2b-sandbox-id")
    if sandbox is None:
        return None
    return Address(sandbox.decode("latin-1"), _port(head.get(b"e2b-sandbox-port", str(ENVD_PORT).encode()).decode("latin-1")))


def _port(text: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 5 or not 1 <= int(text) <= 65_535:
        raise InvalidArgument(f"{text[:16]!r} is no port (1 to 65535)")
    return int(text)


async def admitted(scope: Scope, services: Services, address: Address, head: Mapping[bytes, bytes]) -> Seat:
    """The seat of a request that may go on, and the sandbox is awake. Away, NotFound, Unauthenticated."""
    seat = find(services, address)
    if seat.port != ENVD_PORT:
        return seat  # the ingress decides, by the same tokens
    if scope["path"] in _HIDDEN:
        raise NotFound(f"there is nothing at {scope['path'][:200]!r}")
    opened = _opened(scope, services, seat, head)
    if not await wake.ready(services, seat, wakes=opened):
        raise Away(address.sandbox)
    return seat


def find(services: Services, address: Address) -> Seat:
    """Whose it is. Away when there is none that has not ended."""
    try:
        sandbox = to_ours(address.sandbox)
    except NotFound:
        raise Away(address.sandbox[:64]) from None
    record = services.sandboxes.living(sandbox)
    if record is None:
        raise Away(address.sandbox[:64])
    return Seat(record.tenant, sandbox, address.port)


def _opened(scope: Scope, services: Services, seat: Seat, head: Mapping[bytes, bytes]) -> bool:
    """Whether a token was right; `/health` needs none. Unauthenticated."""
    path, tokens = scope["path"], services.e2b.tokens
    given = head.get(b"x-access-token")
    if not services.e2b.extras.of(seat.sandbox).secure:
        return True
    if given is not None and tokens.opens_envd(seat.sandbox, given.decode("latin-1")):
        return True
    if path == "/health" and scope["method"] in ("GET", "HEAD"):
        return False
    if given is None and path == "/files":
        query = dict(parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True, errors="surrogateescape"))
        tokens.check_signature(seat.sandbox, scope["method"], query)
        return True
    raise Unauthenticated("unauthorized access, please provide a valid access token or method signing if supported")
