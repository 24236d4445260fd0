"""Every limit of the ingress in one place, each with its reason. Sizes are bytes, times are seconds."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """As the server has them; tests take smaller ones."""

    # Half a megabyte each at most when both ends are slow.
    connections: int = 4096
    # Of one address (of IPv6: one /64) that is not this machine's own.
    connections_per_client: int = 512
    # To one sandbox at a time: each is a stream of the node's session with its guest, which has 1,024.
    connections_per_sandbox: int = 256
    # A connection that has not sent a whole head after this is a slow one on purpose.
    head_seconds: float = 15.0
    # Between two requests of a client.
    keep_alive_seconds: float = 75.0
    # A connection to a guest without a request: it keeps the sandbox from being idle, so it is not kept for long.
    guest_idle_seconds: float = 4.0
    # Nothing moves in either direction. Clients of long commands and streams count on more than ten minutes.
    idle_seconds: float = 660.0
    # From asking control until the guest is connected: a sandbox may have to wake first.
    resolve_seconds: float = 330.0
    # After an early answer, what a client still sends is read and dropped for this long, so that it sees the answer and no reset.
    linger_seconds: float = 2.0
    tls_seconds: float = 10.0
    # Replies before the reply.
    interims: int = 16
