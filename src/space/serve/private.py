"""A server of one's own for as long as a block runs: `space run` without a server, tests, benches.

The instance has a random name, takes any free port and is removed whole when the block ends, or when the process that
holds it dies in any way: the two share a socket, and its closing is the signal.
"""

from __future__ import annotations

import json
import os
import secrets
import select
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from space.config.instance import Instance, load
from space.model.errors import SpaceError, Unavailable, from_code

_START_WITHIN = 120.0
_STOP_WITHIN = 60.0


@dataclass(frozen=True, slots=True)
class Served:
    """A running instance: where its API is and the admin's key to it."""

    url: str
    api_key: str
    instance: Instance
    pid: int


def random_name() -> str:
    """A name for a private instance."""
    return "p" + secrets.token_hex(5)


@contextmanager
def private_instance(
    overrides: Mapping[str, str] | None = None,
    *,
    python: Path | None = None,
    dev: bool = False,
    log: Path | None = None,
) -> Iterator[Served]:
    """Serve a fresh instance (root only), yield it when it answers, remove it with all that it holds.

    overrides: settings, as `space serve --set` takes them. python: the runtime's interpreter, default this one. dev: it may
    be a checkout's. log: where serve's own lines go, default nowhere. Unavailable, or what serve said, when it cannot start.
    """
    name = random_name()
    sets = {"port": "0", **(overrides or {})}
    ours, theirs = socket.socketpair()
    argv = [str(python or sys.executable), "-I", "-m", "space.serve.main", "--instance", name, "--ephemeral"]
    argv += ["--parent-fd", str(theirs.fileno()), *(["--dev"] if dev else [])]
    for key, value in sets.items():
        argv += ["--set", f"{key}={value}"]
    sink = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600) if log else subprocess.DEVNULL
    with ours:
        try:
            # A session of its own: the terminal's ^C is for whoever holds the block, and reaches serve as the hang-up.
            process = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=sink,
                pass_fds=[theirs.fileno()],
                cwd="/",
                env={},
                start_new_session=True,
            )
        finally:
            theirs.close()
            if log:
                os.close(sink)
        try:
            yield _served(name, ours, process)
        finally:
            with suppress(OSError):
                ours.shutdown(socket.SHUT_RDWR)
            try:
                process.wait(_STOP_WITHIN)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _served(name: str, channel: socket.socket, process: subprocess.Popen[bytes]) -> Served:
    said = json.loads(_line(channel, time.monotonic() + _START_WITHIN) or "null")
    if said is None:
        raise Unavailable(f"the private server {name} did not start (status {process.poll()})", hint="`space doctor` says what is missing")
    if "error" in said:
        fault: SpaceError = from_code(str(said["error"]), str(said["message"]), hint=said.get("hint"))
        raise fault
    instance = load(name)
    if instance is None:
        raise Unavailable(f"the private server {name} is gone again")
    return Served(str(said["url"]), instance.admin_key.read_text().strip(), instance, process.pid)


def _line(channel: socket.socket, deadline: float) -> str:
    """What serve writes, up to its line's end; "" when it hangs up or is late."""
    text = b""
    while not text.endswith(b"\n"):
        ready, _, _ = select.select([channel], [], [], max(0.0, deadline - time.monotonic()))
        data = channel.recv(65536) if ready else b""
        if not data:
            return ""
        text += data
    return text.decode()
