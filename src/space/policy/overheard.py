"""Where a program would connect: it is told to use a proxy, which is a socket of ours that writes down the name and lets nothing through.

For programs that know a host by themselves and show it nowhere.
"""

from __future__ import annotations

import base64
import re
import secrets
import socket
import tempfile
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from space.host.process import ProcessFailed, run

_CONNECT = re.compile(rb"CONNECT ([A-Za-z0-9._-]{1,253}):([0-9]{1,5}) HTTP/1\.[01]\r\n")
_MOST_CONNECTIONS = 16
_MOST_HEAD = 8192


def overheard(
    argv: Sequence[str], environment: Mapping[str, str], *, proxy: str, home: str, seconds: float = 20.0
) -> list[tuple[str, int]]:
    """Hosts and ports that the program asks its proxy for, in their order. Nothing is sent to any of them.

    proxy, home: the variables that say the program's proxy, and its folder, for which it gets an empty one.
    """
    # Anybody on this machine can connect to the socket: only who knows the word is heard.
    word = secrets.token_hex(16)
    found: list[tuple[str, int]] = []
    with tempfile.TemporaryDirectory(prefix="space-discover-") as folder, socket.create_server(("127.0.0.1", 0)) as listener:
        listening = threading.Thread(target=_listen, args=(listener, word, found), name="overheard", daemon=True)
        listening.start()
        told = {proxy: f"http://space:{word}@127.0.0.1:{listener.getsockname()[1]}", home: folder}
        with suppress(ProcessFailed):  # it cannot succeed
            run(argv, env={**environment, **told}, cwd=Path(folder), timeout=seconds)
        listener.shutdown(socket.SHUT_RDWR)
        listening.join()
    return list(dict.fromkeys(found))


def _listen(listener: socket.socket, word: str, found: list[tuple[str, int]]) -> None:
    for _ in range(_MOST_CONNECTIONS):
        try:
            connection, _address = listener.accept()
        except OSError:
            return  # the program has ended
        with connection, suppress(OSError):
            connection.settimeout(2)
            if (asked := connect_of(_head(connection), word)) is not None:
                found.append(asked)


def _head(connection: socket.socket) -> bytes:
    head = b""
    while b"\r\n\r\n" not in head and len(head) < _MOST_HEAD and (more := connection.recv(_MOST_HEAD)):
        head += more
    return head


def connect_of(head: bytes, word: str) -> tuple[str, int] | None:
    """Host and port of a CONNECT that brings the word; None for anything else."""
    found = _CONNECT.match(head)
    credential = b"Proxy-Authorization: Basic " + base64.b64encode(f"space:{word}".encode()) + b"\r\n"
    if found is None or credential.lower() not in head.lower() or credential[27:] not in head:
        return None
    return found[1].decode(), int(found[2])
