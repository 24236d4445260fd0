"""What waits for a slow consumer: in order, joined, bounded."""

from __future__ import annotations

import tracemalloc

import pytest

from space.core.wire.events import Data, Message
from space.core.wire.inbox import MAX_MESSAGES, Inbox
from space.model.errors import ProtocolError


def drained(inbox: Inbox) -> list[Data | Message]:
    return list(iter(lambda: inbox.take(1), None))


def test_order_between_lanes_and_messages_is_kept() -> None:
    inbox = Inbox()
    given: list[Data | Message] = [Data(1, b"a"), Data(1, b"b", 1), Message(1, b"m"), Data(1, b"c"), Data(1, b"d"), Data(1, b"e", 1)]
    for event in given:
        inbox.put(event)
    assert drained(inbox) == [Data(1, b"a"), Data(1, b"b", 1), Message(1, b"m"), Data(1, b"cd"), Data(1, b"e", 1)]
    assert inbox.take(1) is None


def test_large_pieces_are_handed_on_as_they_came() -> None:
    inbox, large = Inbox(), bytes(65_536)
    inbox.put(Data(1, large))
    inbox.put(Data(1, large))
    taken = inbox.take(1)
    assert taken is not None
    assert taken.payload is large
    assert inbox.pieces == 1


@pytest.mark.parametrize("lanes", [(0,), (0, 1)], ids=["one lane", "alternating lanes"])
def test_a_window_of_single_bytes_takes_little_more_memory_than_a_window(lanes: tuple[int, ...]) -> None:
    inbox, window = Inbox(), 65_536
    tracemalloc.start()
    try:
        for number in range(window):
            inbox.put(Data(1, b"x", lanes[number % len(lanes)]))
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 2 * window
    total = {0: 0, 1: 0}
    for event in drained(inbox):
        assert isinstance(event, Data)
        total[event.lane] += len(event.payload)
    assert sum(total.values()) == window
    assert total[lanes[-1]] == window // len(lanes)


def test_unread_messages_are_counted() -> None:
    inbox = Inbox()
    for _ in range(MAX_MESSAGES):
        inbox.put(Message(3, b"x"))
    with pytest.raises(ProtocolError, match="4096 messages are unread on stream 3"):
        inbox.put(Message(3, b"x"))
    inbox.take(3)
    inbox.put(Message(3, b"x"))


def test_nothing_is_joined_across_a_message() -> None:
    inbox = Inbox()
    for event in (Data(1, b"a"), Message(1, b"m"), Data(1, b"b")):
        inbox.put(event)
    assert [type(event) for event in drained(inbox)] == [Data, Message, Data]


def test_clear_forgets_all() -> None:
    inbox = Inbox()
    inbox.put(Message(1, b"m"))
    inbox.clear()
    assert inbox.take(1) is None
    assert inbox.pieces == 0
