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
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from space.config.instance import Instance, load
from space.model.errors import SpaceError, Unavailable, from_code
from space.serve import runtime

_START_WITHIN = 120.0
_STOP_WITHIN = 60.0


@dataclass(frozen=True, slots=True)
class Served:
    """A running instance: where its API is and the admin's key to it."""

    url: str
    api_key: str = field(repr=False)  # a test that fails shows what it was given
    instance: Instance
    pid: int


def random_name() -> str:
    """A name for a private instance."""
    return "p" + secrets.token_hex(5)


class Launch:
    """A serve of our own: it stops when `hang_up` is called, or when this process is gone. The caller waits for `process`."""

    def __init__(
        self,
        name: str,
        overrides: Mapping[str, str],
        *,
        ephemeral: bool,
        python: Path | None = None,
        dev: bool = False,
        log: Path | None = None,
    ) -> None:
        self.name = name
        self._channel, theirs = socket.socketpair()
        argv = [str(python or sys.executable), "-I", "-m", "space.serve.main", "--instance", name]
        argv += ["--parent-fd", str(theirs.fileno()), *(["--ephemeral"] if ephemeral else []), *(["--dev"] if dev else [])]
        for key, value in overrides.items():
            argv += ["--set", f"{key}={value}"]
        with ExitStack() as stack:
            stack.callback(theirs.close)
            sink: int = subprocess.DEVNULL
            if log is not None:
                sink = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
                stack.callback(os.close, sink)
            # A session of its own: the terminal's ^C is for whoever holds the block, and reaches serve as the hang-up.
            self.process = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=sink,
                pass_fds=[theirs.fileno()],
                cwd="/",
                env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"},
                start_new_session=True,
            )

    def wait_until_ready(self) -> Served:
        """Where it serves; Unavailable, or what serve itself said, when it cannot start."""
        said = json.loads(self._line(time.monotonic() + _START_WITHIN) or "null")
        if said is None:
            fact = f"the private server {self.name} did not start (status {self.process.poll()})"
            raise Unavailable(fact, hint="`space doctor` says what is missing")
        if "error" in said:
            fault: SpaceError = from_code(str(said["error"]), str(said["message"]), hint=said.get("hint"))
            raise fault
        instance = load(self.name)
        if instance is None:
            raise Unavailable(f"the private server {self.name} is gone again")
        return Served(str(said["url"]), instance.admin_key.read_text().strip(), instance, self.process.pid)

    def hang_up(self) -> None:
        """Let serve stop; idempotent."""
        self._channel.close()

    def stop(self) -> None:
        """Hang up and wait until it has stopped; killed after a minute."""
        self.hang_up()
        try:
            self.process.wait(_STOP_WITHIN)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def _line(self, deadline: float) -> str:
        """What serve writes, up to its line's end; "" when it hangs up or is late."""
        text = b""
        while not text.endswith(b"\n"):
            ready, _, _ = select.select([self._channel], [], [], max(0.0, deadline - time.monotonic()))
            data = self._channel.recv(65536) if ready else b""
            if not data:
                return ""
            text += data
        return text.decode()


@contextmanager
def private_instance(
    overrides: Mapping[str, str] | None = None,
    *,
    python: Path | None = None,
    dev: bool | None = None,
    log: Path | None = None,
) -> Iterator[Served]:
    """Serve a fresh instance (root only), yield it when it answers, remove it with all that it holds.

    It keeps no templates warm unless it is told to: it is gone before that is worth its cost.

    overrides: settings, as `space serve --set` takes them. python: the runtime's interpreter, default this one. dev: it may
    be a checkout's, which is the default where this process, root as well, runs from one itself. log: where serve's own lines
    go, default nowhere. Unavailable, or what serve said, when it cannot start.
    """
    if dev is None:
        dev = python is None and any(map(runtime.objection, runtime.locations()))
    launch = Launch(
        random_name(),
        {"port": "0", "warm_templates": "0", **(overrides or {})},
        ephemeral=True,
        python=python,
        dev=dev,
        log=log,
    )
    try:
        yield launch.wait_until_ready()
    finally:
        launch.stop()
        _remove_the_rest(launch)


def _remove_the_rest(launch: Launch) -> None:
    """A serve that was killed removed nothing: then we do."""
    found = load(launch.name) if launch.process.returncode != 0 else None
    if found is not None:
        from space.serve.remove import remove

        remove(found)
