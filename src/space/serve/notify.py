"""Telling systemd how far serve is (sd_notify(3)): a datagram to the socket that NOTIFY_SOCKET names, if it names one."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from contextlib import suppress

READY, STOPPING = "READY=1", "STOPPING=1"


def notify(state: str, environment: Mapping[str, str] = os.environ) -> bool:
    """Say it; whether somebody was told. A manager that does not listen is no reason to fail."""
    address = environment.get("NOTIFY_SOCKET", "")
    if not address.startswith(("/", "@")):
        return False
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as manager:
        manager.connect("\0" + address[1:] if address.startswith("@") else address)
        manager.sendall(state.encode())
        return True
    return False
