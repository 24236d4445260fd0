"""Playbook: dialogues with one side of a session, without I/O, that read in the order in which they happen.

book = Playbook.opener(GUEST)
stream = book.opens("exec")
book.hears(DATA, stream, b"hi").gives(Data(stream, b"hi"))
book.hears(DATA, 99, b"hi").breaks("never opened")
"""

from __future__ import annotations

from typing import Generic, Self, TypeVar

from space.core.wire.events import GUEST, Answer, Broken, Event, Greeted, Layout, Opened, Renewed
from space.core.wire.frames import OPEN, VERSION, Encoder, Greeting, encode_hello, encode_hello_ack
from space.core.wire.mux import Acceptor, Opener

NONCE = b"playbook's nonce"
M = TypeVar("M", Opener, Acceptor)


class Playbook(Generic[M]):
    """The mux under test, and the peer's frame counters."""

    def __init__(self, mux: M, layout: Layout) -> None:
        self.mux: M = mux
        self.peer = [Encoder() for _ in layout]
        self.heard: list[Event] = []
        self._layout = layout

    @classmethod
    def opener(cls, layout: Layout = GUEST, generation: int = 7) -> Playbook[Opener]:
        """A host whose HELLOs were answered."""
        book = Playbook(Opener(layout, NONCE, generation), layout)
        for number, pipe in enumerate(layout):
            book.hears_bytes(encode_hello_ack(Greeting(NONCE, generation, VERSION, pipe.number)), pipe=number)
        return book.gives(*(Greeted(number, number == len(layout) - 1) for number in range(len(layout))))

    @classmethod
    def acceptor(cls, layout: Layout = GUEST, generation: int = 7) -> Playbook[Acceptor]:
        """A guest that was greeted."""
        return Playbook(Acceptor(layout), layout).greeted(NONCE, generation)

    def greeted(self: Playbook[Acceptor], nonce: bytes, generation: int = 7) -> Playbook[Acceptor]:
        """The peer begins a session; checks the answers."""
        for number, pipe in enumerate(self._layout):
            greeting = Greeting(nonce, generation, VERSION, pipe.number)
            self.peer[number].restart()
            self.hears_bytes(encode_hello(greeting), pipe=number)
            renewed = (Renewed(generation),) if number == 0 else ()
            self.gives(*renewed, Answer(number, encode_hello_ack(greeting)))
        return self

    def opens(self: Playbook[Opener], verb: str = "echo", *, bulk: bool = False) -> int:
        """The host opens a stream: its number."""
        return self.mux.send_open(verb, b"\x80", bulk=bulk)[0]

    def is_asked(self: Playbook[Acceptor], stream: int, verb: str = "echo", *, pipe: int = 0) -> Playbook[Acceptor]:
        """The peer opens a stream."""
        name = verb.encode()
        return self.hears(OPEN, stream, bytes((len(name),)) + name + b"\x80", pipe=pipe).gives(Opened(stream, verb, b"\x80"))

    def hears(self, kind: int, stream: int = 0, payload: bytes = b"", *, pipe: int = 0, lane: int = 0) -> Self:
        """The peer's next frame on that pipe."""
        return self.hears_bytes(self.peer[pipe].frame(kind, stream, payload, lane), pipe=pipe)

    def hears_bytes(self, data: bytes, *, pipe: int = 0) -> Self:
        """Whatever the peer writes."""
        self.heard += self.mux.receive(pipe, data)
        return self

    def gives(self, *events: Event) -> Self:
        """Exactly these events came since the last check."""
        heard, self.heard = self.heard, []
        assert heard == list(events), f"heard {heard}, expected {list(events)}"
        return self

    def breaks(self, words: str) -> Self:
        """One event came since: the peer's fault, in words that hold these."""
        heard, self.heard = self.heard, []
        assert len(heard) == 1, f"heard {heard}, expected one Broken"
        assert isinstance(heard[0], Broken), f"heard {heard[0]}, expected Broken"
        assert words in heard[0].error.message, f"broke with {heard[0].error.message!r}, expected {words!r}"
        return self
