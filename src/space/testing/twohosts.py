"""Two network namespaces with a wire between them: `here` stands for a machine, `there` for everything it can reach. For tests as root.

Sockets belong to the namespace in which they were made, whoever uses them later: a test makes servers `there` and lets its own loop serve.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from space.host import process, syscalls

HERE, THERE = "10.9.0.2", "10.9.0.1"


@dataclass
class TwoHosts:
    """home: where the test itself lives. Each is a descriptor of a namespace."""

    home: int
    here: int
    there: int

    @contextmanager
    def within(self, namespace: int) -> Iterator[None]:
        """The calling thread, and what it starts, is in that namespace."""
        before = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        syscalls.setns(namespace, syscalls.CLONE_NEWNET)
        try:
            yield
        finally:
            syscalls.setns(before, syscalls.CLONE_NEWNET)
            os.close(before)

    def add(self, namespace: int, *addresses: str) -> None:
        """Addresses of its loopback interface."""
        with self.within(namespace):
            for address in addresses:
                _ip("addr", "add", address, "dev", "lo", *(["nodad"] if ":" in address else []))

    def remove(self, namespace: int, address: str) -> None:
        """One of them."""
        with self.within(namespace):
            _ip("addr", "del", address, "dev", "lo")

    def listener(self, namespace: int, address: str, port: int) -> socket.socket:
        """A listening TCP socket there, not blocking."""
        with self.within(namespace):
            family = socket.AF_INET6 if ":" in address else socket.AF_INET
            made = socket.create_server((address, port), family=family, backlog=64)
        made.setblocking(False)
        return made


def _ip(*words: str) -> None:
    process.run(["ip", *words])


def _new() -> int:
    syscalls.unshare(syscalls.CLONE_NEWNET)
    _ip("link", "set", "lo", "up")
    return os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)


@contextmanager
def two_hosts(there: Iterable[str]) -> Iterator[TwoHosts]:
    """`here` routes everything to `there`, which has those addresses. Nothing is left: namespaces go with their last descriptor."""
    home = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    made: list[int] = [home]
    holder: subprocess.Popen[bytes] | None = None
    try:
        made.append(_new())
        holder = subprocess.Popen(["sleep", "infinity"])  # `ip` names a namespace by a process that lives in it
        made.append(_new())
        hosts = TwoHosts(home, made[2], made[1])
        _ip("link", "add", "out", "type", "veth", "peer", "name", "in", "netns", str(holder.pid))
        _ip("addr", "add", f"{HERE}/24", "dev", "out")
        _ip("link", "set", "out", "up")
        with hosts.within(hosts.there):
            _ip("addr", "add", f"{THERE}/24", "dev", "in")
            _ip("link", "set", "in", "up")
        _ip("route", "add", "default", "via", THERE)
        syscalls.setns(home, syscalls.CLONE_NEWNET)
        hosts.add(hosts.there, *there)
        yield hosts
    finally:
        syscalls.setns(home, syscalls.CLONE_NEWNET)
        if holder is not None:
            holder.send_signal(signal.SIGKILL)
            holder.wait()
        for each in made:
            os.close(each)
