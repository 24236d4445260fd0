"""Ports of sandboxes that others may reach: values that the API shows."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class ExposedPort:
    """A port of a sandbox that is reached through the ingress.

    public: by anybody; otherwise by who sends `token` as `e2b-traffic-access-token`. url: by host name, one origin a port. address,
    headers: the same without a name that has to lead to the server: the ingress itself, and what to send it (the token among it).
    """

    sandbox: str
    port: int
    public: bool
    url: str
    address: str
    headers: dict[str, str] = field(default_factory=dict)
    token: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class IngressInfo:
    """How ports are reached. url: the ingress itself. domain: below which names `<port>-<sandbox>` lead there; None: `localhost`, on the
    server's own machine. ca: PEM of the authority that its certificate is of, where that is this server's own.
    """

    url: str
    domain: str | None
    ca: str | None
