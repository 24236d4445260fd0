"""The session's state machine, as dialogues."""

from __future__ import annotations

import struct

import msgspec
import pytest

from space.core.wire import frames, streams
from space.core.wire.events import (
    GUEST,
    MAX_STREAMS,
    NODE,
    Answer,
    Broken,
    Closed,
    Credited,
    Data,
    Greeted,
    Message,
    Opened,
    Ponged,
    Renewed,
    WasReset,
)  # fmt: skip
from space.core.wire.frames import (
    BULK,
    CLOSE,
    CONTROL,
    CREDIT,
    DATA,
    MSG,
    OPEN,
    PING,
    PONG,
    RESET,
    VERSION,
    Encoder,
    Greeting,
    encode_hello,
    encode_hello_ack,
)  # fmt: skip
from space.core.wire.mux import Acceptor, Opener
from space.model.errors import Conflict
from space.testing.playbook import NONCE, Playbook


def credit(size: int) -> bytes:
    return struct.pack("<I", size)


def fault(code: str = "not_found", message: str = "gone") -> bytes:
    return msgspec.msgpack.encode({"code": code, "message": message})


# The opener and its peer


def test_exec_in_full() -> None:
    book = Playbook.opener()
    number = book.opens("exec")
    book.hears(MSG, number, b"started").gives(Message(number, b"started"))
    book.hears(DATA, number, b"out").hears(DATA, number, b"err", lane=1).gives(Data(number, b"out"), Data(number, b"err", 1))
    book.mux.send_close(number)
    book.hears(MSG, number, b"exited").hears(CLOSE, number).gives(Message(number, b"exited"), Closed(number))
    assert book.mux.live == 0


def test_half_closed_by_the_peer_still_sends() -> None:
    book = Playbook.opener()
    number = book.opens()
    book.hears(CLOSE, number).gives(Closed(number))
    assert book.mux.send_data(number, b"more")
    assert book.mux.send_close(number)
    assert book.mux.live == 0


@pytest.mark.parametrize("kind", [DATA, MSG, CLOSE])
def test_nothing_follows_the_peers_close(kind: int) -> None:
    book = Playbook.opener()
    number = book.opens()
    book.hears(CLOSE, number).gives(Closed(number))
    book.hears(kind, number, b"" if kind == CLOSE else b"x").breaks(f"{frames.NAMES[kind]} on stream 1, which is closed by the peer")


@pytest.mark.parametrize(
    ("kind", "payload"), [(DATA, b"x"), (MSG, b"x"), (CLOSE, b""), (RESET, fault()), (CREDIT, credit(1))], ids=lambda v: str(v)[:8]
)
def test_frames_for_an_ended_stream_are_ignored_and_for_one_never_opened_break(kind: int, payload: bytes) -> None:
    book = Playbook.opener()
    number = book.opens()
    assert book.mux.send_reset(number, "unavailable", "enough")
    book.hears(kind, number, payload).gives()
    book.hears(kind, number + 1, payload).breaks("stream 2, which was never opened")


def test_nothing_is_read_after_a_break() -> None:
    book = Playbook.opener()
    number = book.opens()
    book.hears(DATA, 9, b"x").breaks("never opened")
    book.hears(DATA, number, b"x").gives()
    with pytest.raises(Conflict, match="not open"):
        book.mux.send_open("noop", b"\x80")


def test_a_peer_that_opens_a_stream_breaks_the_session() -> None:
    Playbook.opener().hears(OPEN, 1, b"\x04noop\x80").breaks("OPEN may not come from this side")


def test_a_stream_lives_on_the_pipe_of_its_open() -> None:
    book = Playbook.opener()
    number = book.opens(bulk=True)
    book.hears(DATA, number, b"x", pipe=1).gives(Data(number, b"x"))
    book.hears(DATA, number, b"x", pipe=0).breaks("came on pipe 0, it lives on pipe 1")


def test_a_close_on_the_wrong_pipe_breaks_the_session() -> None:
    book = Playbook.opener()
    book.opens()
    book.hears(CLOSE, 1, pipe=1).breaks("CLOSE for stream 1 came on pipe 1")


def test_a_reset_ends_the_stream_and_its_words_are_made_safe_to_print() -> None:
    book = Playbook.opener()
    number = book.opens()
    book.hears(RESET, number, fault("not_found", "no\x1b[31m such\n" + "x" * 900))
    [event] = book.heard
    assert isinstance(event, WasReset)
    assert event.message.startswith("no?[31m such?xxx")
    assert len(event.message) == 500
    assert book.mux.live == 0


BAD_FAULTS = {
    "no map": b"\x01",
    "cut off": fault()[:-1],
    "no message": msgspec.msgpack.encode({"code": "x"}),
    "a number for a code": msgspec.msgpack.encode({"code": 1, "message": ""}),
    "bytes after it": fault() + b"\xc0",
    "not UTF-8": b"\x82\xa4code\xa1\xff\xa7message\xa1x",
    "nested without end": b"\x83\xa1x" + b"\x91" * 60_000,
    "an array of four billion": b"\x83\xa1x\xdd\xff\xff\xff\xff",
    "a text of four billion": b"\x82\xa4code\xdb\xff\xff\xff\xff",
}


@pytest.mark.parametrize("payload", BAD_FAULTS.values(), ids=BAD_FAULTS.keys())
def test_a_reset_that_says_nothing_breaks_the_session(payload: bytes) -> None:
    book = Playbook.opener()
    number = book.opens()
    book.hears(RESET, number, payload).breaks("RESET of stream 1 has no code and message")


# Credit


@pytest.mark.parametrize(("bulk", "pipe"), [(False, CONTROL), (True, BULK)])
def test_a_peer_may_send_its_window_and_not_a_byte_more(bulk: bool, pipe: frames.Pipe) -> None:
    book = Playbook.opener()
    number = book.opens(bulk=bulk)
    for _ in range(pipe.window // pipe.limit):
        book.hears(DATA, number, bytes(pipe.limit), pipe=pipe.number)
    assert len(book.heard) == pipe.window // pipe.limit
    book.heard.clear()
    book.hears(MSG, number, b"x", pipe=pipe.number).breaks("MSG of 1 bytes overruns stream 1's credit of 0")


def test_credit_is_returned_in_quarters_of_the_window() -> None:
    book = Playbook.opener()
    number = book.opens()
    book.hears(DATA, number, bytes(65_536)).hears(DATA, number, bytes(65_536))
    assert book.mux.took(number, 65_535) == b""
    assert book.mux.took(number, 1)[16:-4] == credit(65_536)
    assert book.mux.took(number, 65_536)[16:-4] == credit(65_536)


def test_no_credit_is_returned_to_a_peer_that_has_closed() -> None:
    book = Playbook.opener()
    number = book.opens()
    book.hears(DATA, number, bytes(65_536)).hears(CLOSE, number)
    assert book.mux.took(number, 65_536) == b""


def test_what_we_may_send_is_the_window_then_what_the_peer_returns() -> None:
    book = Playbook.opener()
    number = book.opens()
    for _ in range(4):
        book.mux.send_data(number, bytes(65_536))
    assert book.mux.may_send(number) == 0
    with pytest.raises(Conflict, match="0 may be sent now"):
        book.mux.send_data(number, b"x")
    book.hears(CREDIT, number, credit(65_536)).gives(Credited(number))
    assert book.mux.may_send(number) == 65_536


@pytest.mark.parametrize(("size", "words"), [(0, "CREDIT of 0"), (1, "above its window of 262144"), (0xFFFFFFFF, "above its window")])
def test_credit_that_is_nothing_or_too_much_breaks_the_session(size: int, words: str) -> None:
    book = Playbook.opener()
    number = book.opens()
    book.hears(CREDIT, number, credit(size)).breaks(words)


def test_credit_after_our_close_is_taken() -> None:
    book = Playbook.opener()
    number = book.opens()
    book.mux.send_data(number, bytes(65_536))
    book.mux.send_close(number)
    book.hears(CREDIT, number, credit(65_536)).gives(Credited(number))
    assert book.mux.may_send(number) == 0


# Greeting and heartbeat


def test_streams_wait_until_both_pipes_are_greeted() -> None:
    mux = Opener(GUEST, NONCE, 7)
    book = Playbook(mux, GUEST)
    book.hears_bytes(encode_hello_ack(Greeting(NONCE, 7, VERSION, 0))).gives(Greeted(0, ready=False))
    with pytest.raises(Conflict, match="not open"):
        mux.send_open("noop", b"\x80")
    book.hears_bytes(encode_hello_ack(Greeting(NONCE, 7, VERSION, 1)), pipe=1).gives(Greeted(1, ready=True))
    assert mux.send_open("noop", b"\x80")[0] == 1


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (Greeting(NONCE, 7, 2, 0), "speaks protocol version 2, this side version 1"),
        (Greeting(NONCE, 8, VERSION, 0), "generation 8, expected 7"),
        (Greeting(NONCE, 7, VERSION, 1), "HELLO_ACK is for pipe 1, this is pipe 0"),
    ],
)
def test_an_acknowledgement_of_something_else_breaks_the_session(said: Greeting, words: str) -> None:
    Playbook(Opener(GUEST, NONCE, 7), GUEST).hears_bytes(encode_hello_ack(said)).breaks(words)


def test_a_second_acknowledgement_is_dropped() -> None:
    book = Playbook.opener()
    number = book.opens()
    book.hears_bytes(encode_hello_ack(Greeting(NONCE, 7, VERSION, 0))).gives()
    book.hears(DATA, number, b"x").gives(Data(number, b"x"))


def test_pings_are_answered_and_pongs_matched_in_order() -> None:
    book = Playbook.opener()
    answer = Encoder().frame(PONG, 0, b"01234567")
    book.hears(PING, 0, b"01234567").gives(Answer(0, answer))
    book.mux.send_ping(b"a" * 8)
    book.mux.send_ping(b"b" * 8)
    book.hears(PONG, 0, b"a" * 8).gives(Ponged(b"a" * 8))
    book.hears(PONG, 0, b"b" * 8).gives(Ponged(b"b" * 8))
    book.hears(PONG, 0, b"b" * 8).breaks("answers no PING that waits")


def test_a_pong_out_of_order_breaks_the_session() -> None:
    book = Playbook.opener()
    book.mux.send_ping(b"a" * 8)
    book.hears(PONG, 0, b"b" * 8).breaks("answers no PING that waits")


# What we may not do ourselves


def test_our_own_mistakes_are_conflicts() -> None:
    book = Playbook.opener()
    number = book.opens()
    for wrong in (b"", bytes(65_537)):
        with pytest.raises(Conflict, match="may be sent now"):
            book.mux.send_data(number, wrong)
    with pytest.raises(Conflict, match="at most 65536 fit"):
        book.mux.send_open("noop", bytes(65_536))
    book.mux.send_close(number)
    with pytest.raises(Conflict, match="closed by us"):
        book.mux.send_data(number, b"x")
    with pytest.raises(Conflict, match="closed by us"):
        book.mux.send_close(number)
    book.hears(CLOSE, number).gives(Closed(number))
    with pytest.raises(Conflict, match="has ended"):
        book.mux.send_message(number, b"x")
    assert book.mux.send_reset(number, "x", "y") == b""


def test_no_more_streams_than_the_limit_are_opened() -> None:
    book = Playbook.opener(NODE)
    for _ in range(MAX_STREAMS):
        book.opens()
    with pytest.raises(Conflict, match="1024 streams are open"):
        book.opens()
    book.mux.send_reset(1, "unavailable", "")
    assert book.opens() == MAX_STREAMS + 1


def test_state_tables_agree_with_each_other() -> None:
    """What one side may send in a state, the other may receive in the mirrored one."""
    mirror = {
        streams.OPEN: streams.OPEN,
        streams.LOCAL_CLOSED: streams.REMOTE_CLOSED,
        streams.REMOTE_CLOSED: streams.LOCAL_CLOSED,
        streams.ENDED: streams.ENDED,
    }
    for (state, kind), after in streams.SENDS.items():
        assert streams.RECEIVES[mirror[state], kind] == mirror[after]


# The acceptor and its peer


def test_a_stream_is_served() -> None:
    book = Playbook.acceptor().is_asked(1, "noop")
    book.mux.send_message(1, b"done")
    book.mux.send_close(1)
    book.hears(CLOSE, 1).gives(Closed(1))
    assert book.mux.live == 0


def test_numbers_rise_on_each_pipe_and_may_cross_between_them() -> None:
    book = Playbook.acceptor().is_asked(2).is_asked(1, pipe=1).is_asked(3)
    book.hears(OPEN, 3, b"\x04noop\x80").breaks("OPEN of stream 3 after stream 3 on pipe 0")


def test_one_number_is_not_opened_on_both_pipes() -> None:
    Playbook.acceptor().is_asked(2).hears(OPEN, 2, b"\x04noop\x80", pipe=1).breaks("OPEN of stream 2, which is open on pipe 0")


@pytest.mark.parametrize("payload", [b"\x00", b"\x05noop", b"\x04n\xffop\x80"])
def test_an_open_without_a_verb_breaks_the_session(payload: bytes) -> None:
    Playbook.acceptor().hears(OPEN, 1, payload).breaks("OPEN of stream 1 has no verb")


def test_a_reset_may_overtake_its_open() -> None:
    book = Playbook.acceptor()
    book.hears(RESET, 1, fault()).gives()
    book.hears(OPEN, 1, b"\x04noop\x80", pipe=1).gives()
    assert book.mux.live == 0
    book.is_asked(2, pipe=1)


def test_on_one_pipe_nothing_overtakes() -> None:
    Playbook.acceptor(NODE).hears(RESET, 1, fault()).breaks("RESET on pipe 0 for stream 1, which was never opened")


def test_resets_of_streams_that_ended_leave_no_growing_memory() -> None:
    book = Playbook.acceptor()
    for number in range(1, 5000):
        book.is_asked(number)
        book.hears(RESET, number, fault()).hears(RESET, number, fault())
        book.heard.clear()
    assert len(book.mux._early) <= MAX_STREAMS


def test_one_stream_over_the_limit_is_reset_and_the_session_lives() -> None:
    book = Playbook.acceptor(NODE)
    for number in range(1, MAX_STREAMS + 1):
        book.is_asked(number)
    book.hears(OPEN, MAX_STREAMS + 1, b"\x04noop\x80")
    [answer] = book.heard
    assert isinstance(answer, Answer)
    assert b"no_capacity" in answer.data
    book.heard.clear()
    book.hears(DATA, 1, b"x").gives(Data(1, b"x"))


def test_a_new_session_ends_the_old_one_on_both_pipes() -> None:
    book = Playbook.acceptor().is_asked(1).is_asked(2, pipe=1)
    new = Greeting(b"the second nonce", 8, VERSION, 0)
    book.peer[0].restart()
    book.hears_bytes(encode_hello(new)).gives(Renewed(8), Answer(0, encode_hello_ack(new)))
    assert book.mux.live == 0
    book.hears(DATA, 2, b"of the old session", pipe=1).gives()
    book.is_asked(1)
    late = Greeting(b"the second nonce", 8, VERSION, 1)
    book.peer[1].restart()
    book.hears_bytes(encode_hello(late), pipe=1).gives(Answer(1, encode_hello_ack(late)))
    book.is_asked(2, pipe=1)
    assert book.mux.live == 2


def test_a_repeated_hello_is_answered_and_changes_nothing() -> None:
    book = Playbook.acceptor()
    again = Greeting(NONCE, 7, VERSION, 0)
    book.hears_bytes(encode_hello(again)).gives(Answer(0, encode_hello_ack(again)))
    book.is_asked(1)


def test_a_hello_of_another_version_is_answered_with_ours_and_begins_nothing() -> None:
    book = Playbook.acceptor().is_asked(1)
    book.hears_bytes(encode_hello(Greeting(b"from the future!", 7, 2, 0)))
    book.gives(Answer(0, encode_hello_ack(Greeting(b"from the future!", 7, VERSION, 0))))
    book.hears(DATA, 1, b"x").gives(Data(1, b"x"))


def test_a_broken_session_ends_at_once_and_the_next_hello_begins_another() -> None:
    book = Playbook.acceptor().is_asked(1)
    book.hears_bytes(bytes(100)).breaks("frame type 0 does not exist")
    assert book.mux.live == 0
    book.hears(DATA, 1, b"x", pipe=1).gives()
    book.greeted(b"the second nonce").is_asked(1)


def test_a_hello_in_the_same_bytes_as_the_peers_mistake_is_seen() -> None:
    book = Playbook.acceptor()
    wrong = book.peer[0].frame(DATA, 5, b"x")
    new = Greeting(b"the second nonce", 7, VERSION, 0)
    book.hears_bytes(wrong + encode_hello(new))
    assert [type(event) for event in book.heard] == [Broken, Renewed, Answer]


def test_answers_count_from_the_acknowledgement_of_each_session() -> None:
    book = Playbook.acceptor()
    for nonce in (b"the second nonce", b"the third nonce."):
        book.greeted(nonce).is_asked(1)
        assert book.mux.send_message(1, b"x") == Encoder().frame(MSG, 1, b"x")


def test_a_request_may_be_empty_of_bytes() -> None:
    book = Playbook.acceptor()
    book.hears(OPEN, 1, b"\x04noop").gives(Opened(1, "noop", b""))


def test_an_acceptor_without_hello_reads_nothing() -> None:
    book = Playbook(Acceptor(GUEST), GUEST)
    book.hears(DATA, 1, b"x").hears(OPEN, 1, b"\x04noop\x80").gives()
