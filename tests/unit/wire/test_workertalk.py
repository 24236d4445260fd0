"""What a worker and the node say to each other: bounded values of these types, or nothing."""

from __future__ import annotations

import contextlib

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from space.core.wire import workertalk as talk

ASK = talk.Ask(ask=7, host="allowed.example.com", port=443, scheme="https", method="GET", path="/a", rule="files")


@pytest.mark.parametrize("message", [ASK, talk.AskOver(7), talk.Counted(requests=3, sent=2**62)])
def test_what_a_worker_says_arrives_as_it_was(message: talk.Up) -> None:
    assert talk.from_worker(talk.encode(message)) == message
    with pytest.raises(talk.TalkRefused):
        talk.from_node(talk.encode(message))


def test_an_answer_goes_down_only() -> None:
    assert talk.from_node(talk.encode(talk.Answer(7, allow=True))) == talk.Answer(7, allow=True)
    with pytest.raises(talk.TalkRefused):
        talk.from_worker(talk.encode(talk.Answer(7, allow=True)))


@pytest.mark.parametrize(
    "message",
    [
        talk.Ask(ask=0, host="a", port=443, scheme="https", method="GET", path="/", rule=""),
        talk.Ask(ask=1, host="", port=443, scheme="https", method="GET", path="/", rule=""),
        talk.Ask(ask=1, host="a" * 254, port=443, scheme="https", method="GET", path="/", rule=""),
        talk.Ask(ask=1, host="a", port=65536, scheme="https", method="GET", path="/", rule=""),
        talk.Ask(ask=1, host="a", port=443, scheme="https", method="GET", path="/" * 2049, rule=""),
        talk.Counted(sent=-1),
        talk.Counted(received=1 << 63),
        talk.AskOver(1 << 53),
    ],
)
def test_what_is_not_bounded_is_neither_sent_nor_taken(message: talk.Up) -> None:
    with pytest.raises(talk.TalkRefused):
        talk.encode(message)
    with pytest.raises(talk.TalkRefused):
        talk.from_worker(msgspec.msgpack.encode(message))


def test_a_message_is_of_4096_bytes_at_most() -> None:
    with pytest.raises(talk.TalkRefused):
        talk.from_worker(talk.encode(ASK) + b"\xc0" * 4096)


@given(st.binary(max_size=300) | st.builds(lambda cut, more: talk.encode(ASK)[:cut] + more, st.integers(0, 120), st.binary(max_size=40)))
def test_any_bytes_are_a_message_or_refused(data: bytes) -> None:
    for take in (talk.from_worker, talk.from_node):
        with contextlib.suppress(talk.TalkRefused):
            assert talk.encode(take(data))


def test_numbers_of_questions_are_not_guessed() -> None:
    numbers = {talk.new_ask() for _ in range(1000)}
    assert len(numbers) == 1000
    assert all(1 <= number < 1 << 53 for number in numbers)
