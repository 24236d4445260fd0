"""A real broker, as a process of its own, with a directory and a ring of its own."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

from space.broker import keyring


class BrokerProcess:
    """Started by `start`, which returns once it is ready; what it says is in `log`."""

    def __init__(self, directory: Path) -> None:
        self.data = directory / "broker"
        self.data.mkdir(mode=0o700, exist_ok=True)
        self.keyring = directory / "keyring"
        if not self.keyring.exists():
            keyring.make(self.keyring)
        self.socket = directory / "broker.sock"
        self.log = directory / "broker.log"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """RuntimeError with its log's end when it does not become ready."""
        self.socket.unlink(missing_ok=True)
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener, self.log.open("ab") as log:
            listener.bind(str(self.socket))
            listener.listen(16)
            ready, told = os.pipe()
            number = listener.fileno()
            arguments = [
                sys.executable, "-m", "space.broker.server", "--data", str(self.data), "--listen-fd", str(number),
                "--peer-uid", str(os.geteuid()), "--keyring", str(self.keyring), "--ready-fd", str(told),
            ]  # fmt: skip
            self.process = subprocess.Popen(arguments, pass_fds=(number, told), stderr=log)
        os.close(told)
        with os.fdopen(ready, "rb") as file:
            if file.read() != b"ready\n":
                self.process.wait()
                raise RuntimeError(self.log.read_text()[-2000:])

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
