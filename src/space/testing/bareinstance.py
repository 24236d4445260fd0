"""A private instance with rootd, a node, and what else of the services is asked for: no serve, and control only
if a test starts it. For tests of the node.

The node can be killed and started again; a test's own program can stand in for `space.node.server` (to stop it at a stage).
"""

from __future__ import annotations

import os
import select
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from space.config.instance import Instance, claim
from space.config.settings import Settings, save_effective
from space.rootd import sweep
from space.serve import keyring, layout, roles, service
from space.serve.private import random_name
from space.serve.remove import remove
from space.serve.service import Process, Role
from space.testing import leaks
from space.testing.machine import ACCELERATOR, isolated_python

Storage = Callable[[Path], AbstractContextManager[object]]
_READY_WITHIN = 60.0
BESIDE_NODE = ("rootd", "broker", "audit", "dialer", "minter", "gateway")  # what a node needs, in this order


class BareInstance:
    """Made by `bare_instance`."""

    def __init__(self, settings: Settings, storage: Storage | None = None) -> None:
        self.instance: Instance = claim(random_name())
        self._undo = ExitStack()
        self._storage = storage is not None
        if storage is not None:
            self._undo.enter_context(storage(self.instance.data))
        layout.make_directories(self.instance)
        keyring.ensure(self.instance, settings, durable=False)
        save_effective(self.instance, settings)
        self._processes: dict[str, Process] = {}
        self._roles = {role.name: role for role in roles.of_instance(self.instance) if role.name != "ingress"}
        self._listeners = {name: layout.listen(self.instance, name, settings) for name, role in self._roles.items() if not role.also}
        self._also: dict[str, socket.socket] = {}
        self._settings = settings

    def start(self, name: str, *program: str) -> int:
        """Start a service, and return its pid when it is ready. program: other words than `-m space.NAME.server` for Python."""
        role = self._roles[name]

        def command(role: Role, listen_fd: int, ready_fd: int) -> list[str]:
            words = program or ("-m", f"space.{role.package or role.name}.server")
            fds = ["--listen-fd", str(listen_fd), "--ready-fd", str(ready_fd), *(("--also-fd", str(service.ALSO_FD)) if role.also else ())]
            return [isolated_python(), "-I", *words, "--instance", self.instance.name, *fds]

        if name not in self._listeners:  # of control, which few ask for
            self._listeners[name] = layout.listen(self.instance, name, self._settings)
            self._also[name] = layout.listen_also(self.instance, name)
        process = service.start(role, command, self._listeners[name], self.log(name), also=self._also.get(name))
        self._processes[name] = process
        assert process.ready is not None, "it was just started"
        if not select.select([process.ready], [], [], _READY_WITHIN)[0] or not os.read(process.ready, 16):
            raise AssertionError(f"{name} is not ready: {service.log_tail(self.log(name))}")
        return process.pid

    def kill(self, name: str, number: signal.Signals = signal.SIGKILL) -> None:
        """End it with a signal, and reap it."""
        process = self._processes.pop(name)
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(process.pidfd, number)
        os.waitpid(process.pid, 0)
        process.close()

    def pid(self, name: str) -> int:
        """The process that runs now."""
        return self._processes[name].pid

    def port(self, name: str) -> int:
        """Where its TCP listener is: control's, once it was started; it is the same for the next process."""
        return int(self._listeners[name].getsockname()[1])

    def log(self, name: str) -> Path:
        """What it logs."""
        return self.instance.log / f"{name}.log"

    def close(self) -> None:
        """Kill and remove everything, and prove it."""
        for name in list(self._processes):
            self.kill(name)
        for listener in (*self._listeners.values(), *self._also.values()):
            listener.close()
        if self._storage:
            sweep.sweep(self.instance)  # what is mounted over its data is in use as long as anybody lives
        self._undo.close()
        remove(self.instance)
        leaks.settle(lambda: leaks.of_instance(self.instance))


@contextmanager
def bare_instance(*services: str, settings: Settings | None = None, storage: Storage | None = None) -> Iterator[BareInstance]:
    """An instance with these services started, in that order. storage: has its data directory on a file system of its own."""
    settings = settings or Settings(accelerator="tcg", warm_templates=0)
    one = BareInstance(replace(settings, accelerator=ACCELERATOR or settings.accelerator), storage)
    try:
        for name in services:
            one.start(name)
        yield one
    finally:
        for name in services:
            with suppress(OSError):
                print(f"---- the end of {name}'s log\n{service.log_tail(one.log(name), 6000)}")
        one.close()
