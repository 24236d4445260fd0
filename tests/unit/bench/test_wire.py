"""The bench's raw channel speaks to a guest's daemon: here to the acceptor of the protocol core, in a thread."""

from __future__ import annotations

import select
import socket
import threading
from collections.abc import Iterator

import msgspec
import pytest

from space.bench.wire import Wire
from space.core.wire import guest
from space.core.wire.events import GUEST, Answer, Closed, Data, Opened
from space.core.wire.mux import Acceptor
from space.model.errors import DeadlineExceeded, GuestError


class Daemon:
    """noop, echo, sink and source, as the guest's daemon has them."""

    def __init__(self, ends: tuple[socket.socket, socket.socket]) -> None:
        self.ends, self.mux = ends, Acceptor(GUEST)
        self.verbs: dict[int, str] = {}
        self.counted: dict[int, int] = {}
        self.left: dict[int, int] = {}

    def run(self) -> None:
        while True:
            for end in select.select(self.ends, [], [])[0]:
                data = end.recv(1 << 16)
                if not data:
                    return
                for event in self.mux.receive(self.ends.index(end), data):
                    self.take(event)
            for stream in list(self.left):
                self.pour(stream)

    def take(self, event: object) -> None:
        match event:
            case Answer(pipe, answer):
                self.ends[pipe].sendall(answer)
            case Opened(stream, verb, request):
                self.verbs[stream], self.counted[stream] = verb, 0
                if verb == "source":
                    size = guest.decode_request(guest.Source, request).bytes
                    self.left[stream], self.counted[stream] = size, size
                elif verb not in ("noop", "echo", "sink"):
                    self.ends[0].sendall(self.mux.send_reset(stream, "unsupported", f"no verb {verb}"))
            case Data(stream, payload):
                self.counted[stream] += len(payload)
                self.ends[0].sendall(self.mux.took(stream, len(payload)))
                if self.verbs[stream] == "echo":
                    self.ends[0].sendall(self.mux.send_data(stream, payload))
            case Closed(stream) if self.verbs[stream] in ("noop", "sink"):
                self.finish(stream)
            case _:
                pass

    def pour(self, stream: int) -> None:
        while (size := min(self.left[stream], self.mux.may_send(stream), 1 << 18)) > 0:
            self.left[stream] -= size
            self.ends[1].sendall(self.mux.send_data(stream, bytes(size)))
        if not self.left[stream] and self.mux.may_send(stream) > 100:
            del self.left[stream]
            self.finish(stream)

    def finish(self, stream: int) -> None:
        answer = guest.Done() if self.verbs[stream] == "noop" else guest.TreeDone(0, self.counted[stream], 0)
        end = self.ends[self.mux.pipe_of(stream)]
        end.sendall(self.mux.send_message(stream, msgspec.msgpack.encode(answer)) + self.mux.send_close(stream))


@pytest.fixture
def wire() -> Iterator[Wire]:
    (control, daemons_control), (bulk, daemons_bulk) = socket.socketpair(), socket.socketpair()
    thread = threading.Thread(target=Daemon((daemons_control, daemons_bulk)).run)
    thread.start()
    found = Wire(control, bulk)
    found.greet(10)
    yield found
    found.close()
    thread.join()


def test_echo_noop_sink_and_source_take_turns_on_one_session(wire: Wire) -> None:
    echo = wire.echo()
    for number in range(50):
        echo.there_and_back(f"{number}".encode())
        wire.noop()
    wire.sink(9 << 20)  # several windows
    wire.source(9 << 20)
    echo.there_and_back(b"still")


def test_a_refusal_is_an_error(wire: Wire) -> None:
    with pytest.raises(GuestError, match=r"no verb exec \[unsupported\]"):
        wire.run(["true"])


def test_a_guest_that_does_not_greet_is_given_up() -> None:
    (control, mine), (bulk, other) = socket.socketpair(), socket.socketpair()
    wire = Wire(control, bulk)
    with mine, other, pytest.raises(DeadlineExceeded, match=r"did not say hello within 0\.1 s"):
        wire.greet(0.1)
    wire.close()
