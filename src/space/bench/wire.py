"""The guest channel by hand: one thread, blocking sockets, the protocol's own core. What the whole stack is compared with.

Nothing is between this and the daemon but the two sockets of the VMM, so its round trips and rates are those of the channel.
"""

from __future__ import annotations

import os
import select
import socket
import time

import msgspec

from space.core.wire import guest
from space.core.wire.events import GUEST, Answer, Broken, Closed, Credited, Data, Event, Message, WasReset
from space.core.wire.mux import Opener
from space.model.errors import DeadlineExceeded, GuestError

_CONTROL, _BULK = 0, 1
_STEP = 256 << 10


class Wire:
    """A session with a guest over its two sockets, which it owns."""

    def __init__(self, control: socket.socket, bulk: socket.socket, generation: int = 1) -> None:
        self._sockets = (control, bulk)
        for each in self._sockets:
            each.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
        self._mux = Opener(GUEST, os.urandom(16), generation)

    def close(self) -> None:
        """Hang up."""
        for each in self._sockets:
            each.close()

    def greet(self, within: float) -> None:
        """Say HELLO until the daemon answers on both pipes; DeadlineExceeded after `within` seconds."""
        deadline = time.monotonic() + within
        for pipe in (_CONTROL, _BULK):
            self._sockets[pipe].sendall(self._mux.hello(pipe))
        pause = 0.02
        while not self._mux.ready:
            if time.monotonic() > deadline:
                raise DeadlineExceeded(f"the guest did not say hello within {within:g} s")
            if not self._receive(pause):
                pause = min(pause * 2, 0.25)
                for pipe in (_CONTROL, _BULK):
                    self._sockets[pipe].sendall(self._mux.hello(pipe))

    def configure(self, hostname: str) -> None:
        """Give the guest what it needs before it serves."""
        request = guest.Configure(time.time_ns(), os.urandom(64), hostname, [], 1)
        guest.expect(guest.Configured, self._call("configure", request))

    def run(self, argv: list[str]) -> guest.Exited:
        """Run a command; its output is dropped."""
        request = guest.Exec([word.encode() for word in argv], None, [], None, None, False)
        stream = self._open("exec", request)
        self._send(_CONTROL, self._mux.send_close(stream))
        messages = [event.payload for event in self._until_closed(stream) if isinstance(event, Message)]
        return guest.expect(guest.Exited, messages[-1])

    def noop(self) -> None:
        """The daemon's own noop, a stream of its own as the whole stack uses it."""
        guest.expect(guest.Done, self._call("noop", guest.Empty()))

    def echo(self) -> Echo:
        """A stream whose bytes come back."""
        return Echo(self, self._open("echo", guest.Empty()))

    def sink(self, size: int) -> None:
        """Send that many zero bytes on the bulk pipe and wait until the guest has counted them."""
        stream = self._open("sink", guest.Empty(), bulk=True)
        piece, left = bytes(_STEP), size
        while left:
            room = min(left, self._mux.may_send(stream), _STEP)
            if room < min(left, _STEP):
                self._receive(None)
                continue
            self._send(_BULK, self._mux.send_data(stream, piece[:room]))
            left -= room
        self._send(_BULK, self._mux.send_close(stream))
        self._counted(stream, size)

    def source(self, size: int) -> None:
        """Let the guest send that many bytes on the bulk pipe, and take them."""
        stream = self._open("source", guest.Source(size), bulk=True)
        self._send(_BULK, self._mux.send_close(stream))
        self._counted(stream, size)

    # -- one step ------------------------------------------------------------------------------------------------
    def _counted(self, stream: int, size: int) -> None:
        messages = [event.payload for event in self._until_closed(stream) if isinstance(event, Message)]
        found = guest.expect(guest.TreeDone, messages[-1])
        if found.bytes != size:
            raise GuestError(f"the guest counted {found.bytes} bytes, not {size}")

    def _call(self, verb: str, request: msgspec.Struct) -> bytes:
        stream = self._open(verb, request)
        self._send(_CONTROL, self._mux.send_close(stream))
        return next(event.payload for event in self._until_closed(stream) if isinstance(event, Message))

    def _open(self, verb: str, request: msgspec.Struct, *, bulk: bool = False) -> int:
        stream, frame = self._mux.send_open(verb, msgspec.msgpack.encode(request), bulk=bulk)
        self._send(_BULK if bulk else _CONTROL, frame)
        return stream

    def _until_closed(self, stream: int) -> list[Event]:
        found: list[Event] = []
        while not any(isinstance(event, Closed) for event in found):
            found = [event for event in found if not isinstance(event, Data)]
            found += self._receive(None)
        return found

    def _send(self, pipe: int, data: bytes) -> None:
        if data:
            self._sockets[pipe].sendall(data)

    def _receive(self, timeout: float | None) -> list[Event]:
        """Whatever comes next on either pipe; credit is returned and faults are raised here."""
        ready, _, _ = select.select(self._sockets, [], [], timeout)
        found: list[Event] = []
        for each in ready:
            pipe = self._sockets.index(each)
            data = each.recv(1 << 20)
            if not data:
                raise GuestError("the VMM closed the channel")
            for event in self._mux.receive(pipe, data):
                match event:
                    case Answer(number, answer):
                        self._send(number, answer)
                    case Broken(error):
                        raise error
                    case WasReset(_, code, message):
                        raise GuestError(f"the guest refused: {message} [{code}]")
                    case Data(stream, payload) | Message(stream, payload):
                        self._send(_CONTROL, self._mux.took(stream, len(payload)))
                        found.append(event)
                    case Credited():
                        pass
                    case _:
                        found.append(event)
        return found


class Echo:
    """A round trip is `there_and_back`. It stays open as long as the session."""

    def __init__(self, wire: Wire, stream: int) -> None:
        self._wire, self._stream = wire, stream

    def there_and_back(self, payload: bytes) -> None:
        """Send `payload` as one frame and wait until all of it is back."""
        wire = self._wire
        wire._send(_CONTROL, wire._mux.send_data(self._stream, payload))
        back = b""
        while len(back) < len(payload):
            back += b"".join(event.payload for event in wire._receive(None) if isinstance(event, Data))
        if back != payload:
            raise GuestError("the echo is not what was sent")
