"""A guest of the kernel's own TCP/IP at a slot's TAP: a network namespace with one interface, whose frames are carried over as a VMM would.

For tests as root. Sockets are made within that namespace and used from anywhere.
"""

from __future__ import annotations

import os
import select
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

from space.core.plan.ruleset import GUEST_MAC
from space.host import namespaces, process, syscalls
from space.testing.rawguest import raw_guest

T = TypeVar("T")
_FRAME = 65_536 + 64


class WiredGuest:
    """Its network. `inside` does something there, in a thread that has entered it."""

    def __init__(self, namespace: int) -> None:
        self._namespace = namespace

    def inside(self, work: Callable[[], T]) -> T:
        """What `work` returns, or raises."""
        found: list[T] = []
        failed: list[BaseException] = []

        def entered() -> None:
            try:
                syscalls.setns(self._namespace, syscalls.CLONE_NEWNET)
                found.append(work())
            except BaseException as error:  # noqa: BLE001 - it is raised where it was asked for
                failed.append(error)

        thread = threading.Thread(target=entered, name="guest")
        thread.start()
        thread.join()
        if failed:
            raise failed[0]
        return found[0]

    def tcp(self) -> socket.socket:
        """A socket of the guest's, not blocking."""
        sock = self.inside(lambda: socket.socket(socket.AF_INET, socket.SOCK_STREAM))
        sock.setblocking(False)
        return sock

    def udp(self) -> socket.socket:
        """The same for datagrams."""
        sock = self.inside(lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        sock.setblocking(False)
        return sock


@contextmanager
def wired_guest(netns: Path) -> Iterator[WiredGuest]:
    """The guest of the slot whose namespace that is."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)

    def build() -> bytes:
        syscalls.unshare(syscalls.CLONE_NEWNET)
        tap = namespaces.open_tap("eth0")
        for words in (
            ("link", "set", "eth0", "address", GUEST_MAC),
            ("addr", "add", "10.0.0.2/30", "dev", "eth0"),
            ("link", "set", "lo", "up"),
            ("link", "set", "eth0", "up"),
            ("route", "add", "default", "via", "10.0.0.1"),
        ):
            process.run(["ip", *words])
        here = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
        socket.send_fds(theirs, [b"guest"], [tap, here])
        return b""

    with ours, theirs:
        process.forked(build)
        _, (tap, namespace), _, _ = socket.recv_fds(ours, 16, 2)
    stop, stopped = os.pipe()
    with raw_guest(netns) as guest:
        carrier = threading.Thread(target=_carry, args=(tap, guest.tap, stop), name="wire", daemon=True)
        carrier.start()
        try:
            yield WiredGuest(namespace)
        finally:
            os.close(stopped)
            carrier.join()
            for one in (tap, namespace, stop):
                os.close(one)


def _carry(one: int, other: int, stop: int) -> None:
    ways = {one: other, other: one}
    poll = select.poll()
    for number in (*ways, stop):
        poll.register(number, select.POLLIN)
    while True:
        for number, _ in poll.poll():
            if number == stop:
                return
            with suppress(OSError):
                os.write(ways[number], os.read(number, _FRAME))
