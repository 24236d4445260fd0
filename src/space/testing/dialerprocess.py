"""A real dialer: a process under the dialer's uid of an instance, whose run directory and settings are there already."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from collections.abc import Sequence

from space.config.instance import Instance
from space.testing.machine import isolated_python


class DialerProcess:
    """program: what is run instead of the module itself, as a test's own program that changes something first."""

    def __init__(self, instance: Instance, program: Sequence[str] = ("-m", "space.dialer.server")) -> None:
        self.instance = instance
        self.log = instance.run_root / f"{instance.name}-dialer.log"
        self.process: subprocess.Popen[bytes] | None = None
        self._program = tuple(program)

    def start(self) -> None:
        """Return once it is ready. RuntimeError with its log's end when it does not become so."""
        instance, uid = self.instance, self.instance.dialer_uid
        instance.dialer_socket.unlink(missing_ok=True)
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener, self.log.open("ab") as log:
            listener.bind(str(instance.dialer_socket))
            listener.listen(16)
            ready, told = os.pipe()
            number = listener.fileno()
            command = [isolated_python(), "-I", *self._program, "--instance", instance.name, "--listen-fd", str(number)]
            command += ["--ready-fd", str(told), "--data-root", str(instance.data_root), "--run-root", str(instance.run_root)]
            self.process = subprocess.Popen(
                command, pass_fds=(number, told), stdin=subprocess.DEVNULL, stderr=log, env={}, user=uid, group=uid, extra_groups=[]
            )
        os.close(told)
        with os.fdopen(ready, "rb") as file:
            if file.read() != b"ready\n":
                self.process.wait()
                self.process = None
                raise RuntimeError(self.log.read_text()[-2000:])

    def kill(self) -> None:
        """SIGKILL, and wait."""
        self._end(signal.SIGKILL)

    def stop(self) -> int:
        """SIGTERM, and wait; its status."""
        return self._end(signal.SIGTERM)

    def _end(self, number: signal.Signals) -> int:
        if self.process is None:
            return 0
        process, self.process = self.process, None
        process.send_signal(number)
        return process.wait(15)
