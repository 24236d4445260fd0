"""A policy: what may leave a sandbox. Frozen values; `loader` makes them from text, `verdict` decides by them.

Deny is the default. A rule names a host and may narrow port, scheme, methods and paths; it never widens another. A policy stands in one
of three layers (operator, tenant, sandbox), and what leaves must be allowed by every layer that is there.
"""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import IPv4Network
from typing import Literal

from space.core.policy.names import Pattern
from space.core.policy.paths import PathPattern

# https: terminated, judged request by request; http: the same in the clear; tcp: an opaque stream; passthrough: TLS, not terminated.
Scheme = Literal["https", "http", "tcp", "passthrough"]
Mode = Literal["enforce", "record", "ask"]
PORTS: dict[Scheme, int] = {"https": 443, "http": 80, "passthrough": 443}


@dataclass(frozen=True, slots=True)
class Rule:
    """One allowance. name: what records call it. methods, paths: None for all. grant: the credential that requests get.

    ask: a person is asked for each request. foreign: what becomes of credentials that the guest sends itself. sent_limit, received_limit:
    bytes over the sandbox's life, None without limit. ca: the name of an extra bundle of the operator's, for the upstream's certificate.
    """

    name: str
    host: Pattern
    port: int
    scheme: Scheme = "https"
    methods: frozenset[str] | None = None
    paths: tuple[PathPattern, ...] | None = None
    websocket: bool = False
    grant: str | None = None
    ask: bool = False
    foreign: Literal["forward", "refuse"] = "forward"
    sent_limit: int | None = None
    received_limit: int | None = None
    ca: str | None = None

    @property
    def judged(self) -> bool:
        """Whether its requests are seen one by one."""
        return self.scheme in ("https", "http")


@dataclass(frozen=True, slots=True)
class Block:
    """Literal addresses that may be dialled, as opaque streams. ports: None for all."""

    name: str
    network: IPv4Network
    ports: frozenset[int] | None = None


@dataclass(frozen=True, slots=True)
class Policy:
    """One layer. open: any public name and any public literal address besides the rules."""

    name: str = "none"
    rules: tuple[Rule, ...] = ()
    blocks: tuple[Block, ...] = ()
    open: bool = False
    mode: Mode = "enforce"


NOTHING = Policy()
