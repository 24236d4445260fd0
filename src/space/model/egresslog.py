"""What the gateway decided of a sandbox's traffic, as the API tells it (docs/sdk.md)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

RecordKind = Literal["name", "connection", "request", "credential", "dial", "repeated", "lost", "malformed"]
RECORD_KINDS: tuple[RecordKind, ...] = get_args(RecordKind)
CHAINS: tuple[Literal["gateway"], Literal["dialer"]] = ("gateway", "dialer")
AUDIT_CHAINS = (*CHAINS, "broker")  # and that of credentials


@dataclass(frozen=True, slots=True)
class EgressRecord:
    """One decision. id: its place in the log. chain: who wrote it. reason: why it was refused; empty when it was let through.

    kind: `name` (a DNS query), `connection` and `request` (when they have ended), `credential` (before it is released), `dial` (the
    dialer's own word), `repeated` (refusals that were counted instead, see `of` and `count`), `lost` (records that could not be written),
    `malformed` (a worker sent what is no record). status: what the guest was answered. sent, received: bytes.
    secret, version: of a credential.
    request_id: of a request, as the guest was told it with a refusal; its beginning is the connection's.
    more: fields that this version of the SDK does not know.
    """

    id: str
    kind: str
    chain: str
    at: str
    sandbox: str = ""
    tenant: str | None = None
    generation: int = 0
    name: str = ""
    port: int = 0
    scheme: str = ""
    method: str = ""
    path: str = ""
    query: tuple[str, ...] = ()
    status: int = 0
    rule: str = ""
    reason: str = ""
    recorded: bool = False
    address: str = ""
    upstream: str = ""
    grant: str = ""
    secret: str = ""
    version: int = 0
    sent: int = 0
    received: int = 0
    seconds: float = 0.0
    requests: int = 0
    request_id: str = ""
    of: str = ""
    count: int = 1
    more: Mapping[str, Any] = field(default_factory=dict)

    @property
    def denied(self) -> bool:
        """Whether it tells of something that was not let through."""
        return bool(self.reason) or self.kind == "repeated"
