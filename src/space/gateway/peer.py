"""One end of a connection, guest's or upstream's: transport, TLS, back-pressure. Whoever owns it gets plain text and says what happens.

owner.secured(peer)         the handshake is over
owner.received(peer, data)  plain text
owner.ended(peer)           it sends no more; it may still read
owner.pressed(peer, full)   what was sent waits in memory (True), or waits no more
owner.lost(peer)            it is closed, by whomever; comes last, once
owner.failed(peer, error)   something raised, here or in the owner: both sides must go
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from typing import Protocol, cast

from space.gateway.tls import Tls

HIGH_WATER = 262_144
_RESET = struct.pack("ii", 1, 0)


def reset_on_close(sock: socket.socket) -> None:
    """Closing it tells its peer that something is wrong, at once."""
    with contextlib.suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)


class Owner(Protocol):
    """Who is told what happens to a peer."""

    def secured(self, peer: Peer) -> None: ...
    def received(self, peer: Peer, data: bytes) -> None: ...
    def ended(self, peer: Peer) -> None: ...
    def pressed(self, peer: Peer, full: bool) -> None: ...
    def lost(self, peer: Peer) -> None: ...
    def failed(self, peer: Peer, error: Exception) -> None: ...


class Peer(asyncio.Protocol):
    """address: of the other end, where somebody set it. taken, given: bytes on the wire so far. full: what was sent waits. gone: it has
    no transport any more. spoken: plain text that came before its owner.

    Reading stops while anybody holds it; each who holds has a bit. What comes all the same while somebody WAITs is kept for them.
    """

    # The other side is full; later requests wait; nothing to do with data yet; it makes TLS itself answer, and takes none of it.
    PRESSURE, QUEUE, WAIT, DEAF = 1, 2, 4, 8

    def __init__(self, owner: Owner, sock: socket.socket, tls: Tls | None = None) -> None:
        self.owner = owner
        self.tls = tls
        self.taken = self.given = 0
        self.full = False
        self.gone = False
        self.finishing = False
        self.address = ""
        self.spoken = b""
        self._sock = sock
        self._holds = 0
        self._eof = False
        self._agreed: str | None = None
        self._early = b""
        self._transport: asyncio.Transport | None = None

    # -- what the owner does ---------------------------------------------------------------------------------------

    def send(self, data: bytes) -> None:
        """Plain text to the peer. What is sent to one that is gone or finishing is dropped."""
        if self._transport is None or self.finishing:
            return
        if self.tls is not None:
            data = self.tls.send(data)
        self.given += len(data)
        self._transport.write(data)

    def send_raw(self, data: bytes) -> None:
        """Bytes as they are, outside of TLS."""
        if self._transport is not None and not self.finishing:
            self.given += len(data)
            self._transport.write(data)

    def hold(self, who: int) -> None:
        """Read no more until `release`."""
        if not self._holds and self._transport is not None and not self._eof:
            self._transport.pause_reading()
        self._holds |= who

    def release(self, who: int) -> None:
        """Read again, if nobody else holds."""
        held, self._holds = self._holds, self._holds & ~who
        if held and not self._holds and self._transport is not None and not self._eof:
            self._transport.resume_reading()
        if held & self.WAIT & ~self._holds:
            early, self._early = self._early, b""
            if early and not self.finishing:
                self._take(early)
            if self._eof and not self.finishing:
                self._end()

    @property
    def protocol(self) -> str | None:
        """What was agreed on in the handshake."""
        return self._agreed if self.tls is None else self.tls.protocol

    @property
    def held(self) -> bool:
        return bool(self._holds)

    @property
    def waiting(self) -> int:
        """Bytes that the peer has not taken yet."""
        return self._transport.get_write_buffer_size() if self._transport is not None else 0

    def end(self) -> None:
        """Say that no more comes; what it sends is still read."""
        if self._transport is None or self.finishing:
            return
        if self.tls is not None:
            self._transport.write(self.tls.close())
        with contextlib.suppress(OSError, RuntimeError):
            self._transport.write_eof()

    def finish(self) -> None:
        """Let it take what was sent, then close. What it still sends is read and dropped: closing on it would take the answer back."""
        if self.finishing:
            return
        self.end()
        self.finishing = True
        if self._transport is None:
            return
        if self._eof:
            self._transport.close()
        else:
            self._holds, held = 0, self._holds
            if held:
                self._transport.resume_reading()

    def abort(self, *, reset: bool = False) -> None:
        """Close at once. reset: so that the peer sees that something is wrong."""
        self.finishing = True
        if reset and not self.gone:
            reset_on_close(self._sock)
        if self._transport is not None:
            self._transport.abort()

    def secure(self, tls: Tls, first: bytes) -> None:
        """Speak TLS from here on. first: what was read already."""
        self.tls = tls
        self._take(first)

    # -- what the loop does ----------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        if self.finishing:  # its owner was done with it before it began
            self._transport.abort()
            return
        self._transport.set_write_buffer_limits(high=HIGH_WATER)
        if self._holds:
            self._transport.pause_reading()
        if self.tls is not None:
            try:
                self.send_raw(self.tls.start())
            except Exception as error:  # noqa: BLE001 - whatever it is, both sides go
                self.owner.failed(self, error)

    def data_received(self, data: bytes) -> None:
        self.taken += len(data)
        if self.finishing:
            return
        if self._holds & self.WAIT:  # uvloop begins to read after connection_made, whatever was said there
            self._early += data
            assert self._transport is not None
            self._transport.pause_reading()
        else:
            self._take(data)

    def eof_received(self) -> bool:
        self._eof = True
        if self.finishing:
            return False
        if not self._holds & self.WAIT:
            self._end()
        return True

    def _end(self) -> None:
        try:
            self.owner.ended(self)
        except Exception as error:  # noqa: BLE001
            self.owner.failed(self, error)

    def pause_writing(self) -> None:
        self._press(True)

    def resume_writing(self) -> None:
        self._press(False)

    def connection_lost(self, _error: Exception | None) -> None:
        self._transport = None
        self.gone = True
        try:
            if self.tls is not None:
                self.tls.over()
            self.owner.lost(self)
        except Exception as error:  # noqa: BLE001
            self.owner.failed(self, error)
        self._forget()

    def _forget(self) -> None:
        """Let go of the library's buffers, most of what a connection takes: the rest refers to itself and goes with the next collection."""
        if self.tls is not None and not self._early and not self._holds & self.WAIT:
            self._agreed = self.tls.protocol
            self.tls = None

    def _press(self, full: bool) -> None:
        self.full = full
        if not full:
            self.release(self.DEAF)
        try:
            self.owner.pressed(self, full)
        except Exception as error:  # noqa: BLE001
            self.owner.failed(self, error)

    def _take(self, data: bytes) -> None:
        tls = self.tls
        try:
            if tls is None:
                self.owner.received(self, data)
                return
            before = tls.secured
            try:
                data = tls.receive(data)
            finally:  # an alert says why
                if tls.out.pending:
                    self.send_raw(tls.outgoing())
                    if self.full and before:
                        self.hold(self.DEAF)
            if not before and tls.secured:
                self.owner.secured(self)
            if data:
                self.owner.received(self, data)
            if tls.ended and not self.finishing:
                self.owner.ended(self)
        except Exception as error:  # noqa: BLE001
            self.owner.failed(self, error)


class _Nobody:
    """Owns what is being thrown away."""

    def secured(self, peer: Peer) -> None:
        pass

    def received(self, peer: Peer, data: bytes) -> None:
        pass

    def ended(self, peer: Peer) -> None:
        pass

    def pressed(self, peer: Peer, full: bool) -> None:
        pass

    def lost(self, peer: Peer) -> None:
        pass

    def failed(self, peer: Peer, error: Exception) -> None:
        pass


NOBODY = _Nobody()
