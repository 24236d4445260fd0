"""A real broker and a real keeper of records, each a process of its own with a directory of its own."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Self

from space.config import keyfile


class _Service:
    """Started by `start`, which returns once it is ready; what it says is in `log`."""

    def __init__(self, directory: Path, module: str, arguments: list[str]) -> None:
        name = module.split(".")[1]
        self.data = directory / name
        self.data.mkdir(mode=0o700, exist_ok=True)
        self.socket = directory / f"{name}.sock"
        self.log = directory / f"{name}.log"
        self.process: subprocess.Popen[bytes] | None = None
        self._module = module
        self.arguments = arguments

    def start(self, *, preexec: Callable[[], None] | None = None) -> None:
        """RuntimeError with its log's end when it does not become ready. preexec: called in the child."""
        self.socket.unlink(missing_ok=True)
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener, self.log.open("ab") as log:
            listener.bind(str(self.socket))
            listener.listen(16)
            ready, told = os.pipe()
            number = listener.fileno()
            arguments = [
                sys.executable, "-m", self._module, "--data", str(self.data), "--listen-fd", str(number),
                "--peer-uid", str(os.geteuid()), "--ready-fd", str(told), *self.arguments,
            ]  # fmt: skip
            self.process = subprocess.Popen(arguments, pass_fds=(number, told), stderr=log, preexec_fn=preexec)  # noqa: PLW1509
        os.close(told)
        with os.fdopen(ready, "rb") as file:
            if file.read() != b"ready\n":
                self.process.wait()
                self.process = None
                raise RuntimeError(self.log.read_text()[-2000:])

    def __enter__(self) -> Self:
        """Start it; it ends with the block."""
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def kill(self) -> None:
        """SIGKILL, and wait."""
        self._end(signal.SIGKILL)

    def stop(self) -> int:
        """SIGTERM, and wait; its status."""
        return self._end(signal.SIGTERM)

    def _end(self, number: int) -> int:
        if self.process is None:
            return 0
        process, self.process = self.process, None
        process.send_signal(number)
        return process.wait()


class BrokerProcess(_Service):
    """The broker, with a ring of its own."""

    def __init__(self, directory: Path) -> None:
        self.keyring = directory / "keyring"
        if not self.keyring.exists():
            keyfile.make(self.keyring)
        super().__init__(directory, "space.broker.server", ["--keyring", str(self.keyring)])


class AuditProcess(_Service):
    """The keeper of records of the chains `gateway` and `dialer`."""

    def __init__(self, directory: Path, *more: str) -> None:
        super().__init__(directory, "space.auditd.server", ["--writer", "gateway", "--writer", "dialer", *more])
