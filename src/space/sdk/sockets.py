"""What both forms' WebSockets have in common: address, options, and what a failed opening means. No I/O."""

from __future__ import annotations

import logging
import socket
import ssl
import struct
from collections.abc import Callable, Mapping
from typing import Any

from space.model.errors import Conflict, ConnectionFailed, ProtocolError, SpaceError
from space.sdk.answers import problem
from space.sdk.endpoint import Endpoint
from space.sdk.request import query

Dial = Callable[[], socket.socket]

OPEN_SECONDS = 20.0
CLOSE_SECONDS = 2.0  # for the other side's goodbye: then the connection is closed without it
PING_SECONDS = 10.0  # the server cuts off a client of which it hears nothing for 20 s to 40 s, be it one that only takes its time
SILENCE_SECONDS = 20.0  # who waits for a message asks then whether the server is there, and gives up after as long again
MAX_MESSAGE = 4 << 20
QUEUED = 16  # messages that wait for the reader; then the server is held back
WRITE_LIMIT = 256 << 10
PIECE = 64 << 10  # bytes of one message that we send: small enough that a signal or a resize does not wait long behind it
RESET_ON_CLOSE = struct.pack("ii", 1, 0)  # SO_LINGER: nothing is waited for, the other side gets RST
SUBPROTOCOL = "space.frames.v1"

# The library logs failures that are raised as well; a program's own log need not hold them twice.
QUIET = logging.getLogger("space.sdk.sockets")
QUIET.addHandler(logging.NullHandler())
QUIET.propagate = False


def socket_url(endpoint: Endpoint, path: str, params: Mapping[str, str]) -> str:
    """The address of a WebSocket below the endpoint."""
    base = endpoint.url.replace("http", "ws", 1)  # http:// becomes ws://, https:// becomes wss://
    return f"{base}{path}" + (f"?{query(params)}" if params else "")


def options(endpoint: Endpoint, tls: ssl.SSLContext | None, subprotocol: str | None) -> dict[str, Any]:
    """Options of a connection that both forms share."""
    return {
        "additional_headers": {"Authorization": f"Bearer {endpoint.key}"},
        "user_agent_header": "space-python/0.1",
        "subprotocols": [subprotocol] if subprotocol else None,
        "compression": None,
        "max_size": MAX_MESSAGE,
        # A proxy of the environment must not see connections, and the key, that are meant for this machine.
        "proxy": None if endpoint.is_loopback else True,
    } | ({"ssl": tls} if endpoint.is_tls else {})


def opening_fault(error: Exception, url: str) -> Exception:
    """What a failure to open a WebSocket is: the server's own problem, or that it cannot be reached."""
    from websockets.exceptions import InvalidHandshake, InvalidStatus

    if isinstance(error, SpaceError):
        return error
    if isinstance(error, InvalidStatus):
        response = error.response
        if response.status_code < 400:
            return ProtocolError(f"{url} answered {response.status_code} instead of a WebSocket", hint="is it a `space` server?")
        return problem(response.status_code, bytes(response.body or b""), {k.lower(): v for k, v in response.headers.raw_items()})
    if isinstance(error, InvalidHandshake) and not isinstance(error.__cause__, (OSError, EOFError)):
        return ProtocolError(
            f"{url} answered, but not with a WebSocket: {error}", hint="is there a proxy between that knows no WebSockets?"
        )
    return ConnectionFailed(
        f"cannot reach {url}: {str(error) or type(error).__name__}",
        hint="is `space serve` running there? SPACE_API_URL names another server",
    )


def address_fault(host: str, port: int, error: OSError) -> SpaceError:
    """What it is that nothing can listen there."""
    reason = error.strerror or str(error)
    return Conflict(f"cannot listen on {host} port {port}: {reason}", hint="port 0 takes a free one")
