"""Messages over SOCK_SEQPACKET, where the socket is who speaks: one end in an event loop, bounded both ways.

A message is one packet; descriptors come beside it where they are awaited, and are dropped by the kernel where they are not. Whoever sends
what is too long is hung up on; whoever does not take its answers is not listened to until it does. `burst` packets are taken at a wake-up,
so that no socket starves another.
"""

from __future__ import annotations

import array
import asyncio
import os
import socket
import struct
from collections import deque
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress

MOST = 65_536
_MOST_DRAINED = 4096
_CREDENTIALS = struct.Struct("=iII")
_RIGHTS = socket.CMSG_SPACE(4)


class Packets:
    """One end. receive(message, descriptor): the descriptor is the callee's to close. lost: the other end is gone; called once."""

    def __init__(
        self,
        sock: socket.socket,
        receive: Callable[[bytes, int | None], None],
        lost: Callable[[], None],
        *,
        descriptors: bool = False,
        most: int = MOST,
        burst: int = 1,
    ) -> None:
        sock.setblocking(False)
        self._sock = sock
        self._receive = receive
        self._lost = lost
        self._room = _RIGHTS if descriptors else 0
        self._most = most
        self._burst = burst
        self._loop = asyncio.get_running_loop()
        self._held: asyncio.TimerHandle | None = None
        self._unsent: deque[bytes] = deque()
        self._reads = True
        self._halted = False
        self.open = True
        self._loop.add_reader(sock, self._readable)

    def send(self, message: bytes) -> None:
        """Send. While the other end does not take it, nothing more is taken from there: whoever does not read stops only itself."""
        if not self.open:
            return
        if not self._unsent:
            try:
                self._sock.send(message, socket.MSG_NOSIGNAL)
            except BlockingIOError:
                self._loop.add_writer(self._sock, self._writable)
            except OSError:
                self.hang_up()
                return
            else:
                return
        self._unsent.append(message)
        self._adjust()

    def hold(self, seconds: float) -> None:
        """Take nothing more for that long: what comes waits in the socket, and then its sender."""
        if self.open and self._held is None:
            self._held = self._loop.call_later(seconds, self._resume)
            self._adjust()

    def halt(self, halted: bool) -> None:
        """Take nothing more until it is said otherwise."""
        if self.open:
            self._halted = halted
            self._adjust()

    def drain(self) -> None:
        """Take what is there now (a socket holds less than this; a sender that goes on is not waited for)."""
        for _ in range(_MOST_DRAINED):
            if not self.open or not self._take():
                return

    def close(self) -> None:
        """Hang up; `lost` is not called. Idempotent."""
        if self.open:
            self.open = False
            if self._held is not None:
                self._held.cancel()
            self._loop.remove_reader(self._sock)
            self._loop.remove_writer(self._sock)
            self._unsent.clear()
            self._sock.close()

    def hang_up(self) -> None:
        """Close, and say so by `lost`."""
        if self.open:
            self.close()
            self._lost()

    def _resume(self) -> None:
        self._held = None
        self._adjust()

    def _writable(self) -> None:
        try:
            while self._unsent:
                self._sock.send(self._unsent[0], socket.MSG_NOSIGNAL)
                self._unsent.popleft()
        except BlockingIOError:
            return
        except OSError:
            self.hang_up()
            return
        self._loop.remove_writer(self._sock)
        self._adjust()

    def _adjust(self) -> None:
        reads = self._held is None and not self._unsent and not self._halted
        if reads != self._reads:
            self._reads = reads
            if reads:
                self._loop.add_reader(self._sock, self._readable)
            else:
                self._loop.remove_reader(self._sock)

    def _readable(self) -> None:
        for _ in range(self._burst):
            if not self.open or not self._reads or not self._take():
                return

    def _take(self) -> bool:
        try:
            message, rights, flags, _ = self._sock.recvmsg(self._most, self._room, socket.MSG_CMSG_CLOEXEC)
        except (BlockingIOError, InterruptedError):
            return False
        except OSError:
            self.hang_up()
            return False
        found = _descriptors(rights)
        if not message or flags & socket.MSG_TRUNC or (self._room and flags & socket.MSG_CTRUNC) or len(found) > 1:
            for one in found:
                os.close(one)
            self.hang_up()
            return False
        self._receive(message, found[0] if found else None)
        return True


class Listening:
    """A listening socket: `accepted` gets each connection of a uid that may connect, up to `most` at a time."""

    def __init__(self, listener: socket.socket, uids: Collection[int], accepted: Callable[[socket.socket], None]) -> None:
        listener.setblocking(False)
        self._listener = listener
        self._uids = uids
        self._accepted = accepted
        asyncio.get_running_loop().add_reader(listener, self._accept)

    def close(self) -> None:
        """Accept nobody any more."""
        asyncio.get_running_loop().remove_reader(self._listener)
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            peer, _ = self._listener.accept()
            _, uid, _ = _CREDENTIALS.unpack(peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
            if uid in self._uids:
                self._accepted(peer)
            else:
                peer.close()


def send_with(sock: socket.socket, message: bytes, descriptors: int | Sequence[int] | None) -> None:
    """One message with a descriptor or several beside it, which stay the caller's."""
    numbers = [] if descriptors is None else [descriptors] if isinstance(descriptors, int) else list(descriptors)
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", numbers))] if numbers else []
    sock.sendmsg([message], rights, socket.MSG_NOSIGNAL)


def receive_with(sock: socket.socket, most: int, descriptors: int) -> tuple[bytes, list[int]] | None:
    """One message of up to `most` bytes, and up to that many descriptors, which are the caller's; for those without an event loop.

    None: the other end is gone, or sent what is longer or came with more. BlockingIOError while there is nothing.
    """
    try:
        message, rights, flags, _ = sock.recvmsg(most, socket.CMSG_SPACE(4 * descriptors) if descriptors else 0, socket.MSG_CMSG_CLOEXEC)
    except BlockingIOError:
        raise
    except OSError:
        return None
    found = _descriptors(rights)
    cut = flags & socket.MSG_TRUNC or (descriptors and flags & socket.MSG_CTRUNC) or len(found) > descriptors
    if not message or cut:
        for one in found:
            os.close(one)
        return None
    return message, found


def pair() -> tuple[socket.socket, socket.socket]:
    """A connected pair: one end to register, the other for whoever is to speak over it."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def taken(descriptor: int) -> socket.socket | None:
    """The SEQPACKET socket of a descriptor that was handed over; None (and it is closed) when it is something else."""
    try:
        sock = socket.socket(fileno=descriptor)
    except OSError:
        os.close(descriptor)
        return None
    if sock.family != socket.AF_UNIX or sock.type != socket.SOCK_SEQPACKET or sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
        sock.close()
        return None
    return sock


def _descriptors(rights: list[tuple[int, int, bytes]]) -> list[int]:
    found: list[int] = []
    for level, kind, data in rights:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            numbers = array.array("i")
            numbers.frombytes(data[: len(data) - len(data) % numbers.itemsize])
            found.extend(numbers)
    return found
