"""The place of a reader: over any cuts of the connection, anywhere, what is read is what was written, once."""

from __future__ import annotations

import itertools
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from space.model.errors import (
    ConnectionFailed,
    NotFound,
    ProtocolError,
    RateLimited,
    SandboxDied,
    SpaceError,
    StreamCut,
    Unavailable,
)
from space.model.frames import Kind, encode
from space.sdk.follow import FAILURES, Follower, wait_before_reattach
from space.sdk.output import Gap, Output, TextDecoder
from space.sdk.testing.processes import MockProcess, Process, Reply


def made(pieces: list[tuple[str, bytes]], *, spool: int | None = None) -> MockProcess:
    """A process that has written these and ended."""
    process = MockProcess("sb-x", Process(("x",), "/", {}, "user", None, b"", {}), stdin_open=False, spool_bytes=spool)
    for stream, data in pieces:
        process.wrote(stream, data)
    process.finish(Reply())
    return process


def read(process: MockProcess, cuts: list[int], *, split: int = 1 << 20) -> list[Output | Gap]:
    """Everything, over as many connections as there are cuts, and one."""
    follower = Follower(0, 0)
    got: list[Output | Gap] = []
    for cut in [*cuts, None]:
        asked = {name: int(offset) for name, offset in follower.params().items()}
        body = b"".join(process.frames(asked, lambda: False, follow=True))[:cut]
        follower.begin()
        for at in range(0, len(body), split):
            got += follower.receive(body[at : at + split])
        if follower.end is not None:
            break
        with pytest.raises(StreamCut):
            follower.finish()
        got += follower.salvage()
    follower.finish()
    assert follower.exit is not None
    return got


written = st.lists(st.tuples(st.sampled_from(["stdout", "stderr"]), st.binary(min_size=1, max_size=300)), max_size=12)


@settings(max_examples=300, deadline=None)
@given(pieces=written, cuts=st.lists(st.integers(0, 2000), max_size=8), split=st.integers(1, 500))
def test_any_cuts_lose_nothing_and_repeat_nothing(pieces: list[tuple[str, bytes]], cuts: list[int], split: int) -> None:
    got = read(made(pieces), cuts, split=split)
    for stream in ("stdout", "stderr"):
        place, whole = 0, bytearray()
        for piece in got:
            assert isinstance(piece, Output)
            if piece.stream == stream:
                assert piece.offset == place
                whole += piece.data
                place += len(piece.data)
        assert bytes(whole) == b"".join(data for name, data in pieces if name == stream)


@settings(max_examples=200, deadline=None)
@given(pieces=written, cuts=st.lists(st.integers(0, 2000), max_size=8), spool=st.integers(1, 500))
def test_what_is_read_and_what_is_told_lost_is_all_of_it(pieces: list[tuple[str, bytes]], cuts: list[int], spool: int) -> None:
    got = read(made(pieces, spool=spool), cuts)
    for stream in ("stdout", "stderr"):
        whole = b"".join(data for name, data in pieces if name == stream)
        place = 0
        for piece in got:
            if piece.stream == stream:
                assert piece.offset == place
                if isinstance(piece, Output):
                    assert piece.data == whole[place : place + len(piece.data)]
                place += piece.bytes if isinstance(piece, Gap) else len(piece.data)
        assert place == len(whole)


@settings(max_examples=300, deadline=None)
@given(text=st.text(max_size=40), cuts=st.lists(st.integers(0, 160), max_size=10))
def test_text_is_the_same_however_it_was_split(text: str, cuts: list[int]) -> None:
    data, decoder = text.encode("utf-8", "surrogatepass").decode("utf-8", "replace").encode(), TextDecoder()
    places = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})
    pieces = [Output("stdout", at, data[at:end]) for at, end in itertools.pairwise(places)]
    told = [item for piece in pieces for item in decoder.receive(piece)] + decoder.finish()
    assert "".join(item.text for item in told if not isinstance(item, Gap)) == data.decode()


@settings(max_examples=500, deadline=None)
@given(st.lists(st.binary(max_size=60), max_size=6))
def test_whatever_comes_is_read_or_refused(pieces: list[bytes]) -> None:
    follower = Follower()
    follower.begin()
    try:
        for piece in pieces:
            list(follower.receive(piece))
        follower.salvage()
        follower.finish()
    except SpaceError:
        pass


START = made([]).document()
EXIT = {"code": 0, "signal": None, "oom_killed": False, "timed_out": False, "wall_ms": 1, "stdout_bytes": 3, "stderr_bytes": 0}


def frame(kind: Kind, document: object) -> bytes:
    return encode(kind, json.dumps(document).encode())


@pytest.mark.parametrize(
    ("body", "fault"),
    [
        (encode(Kind.STDOUT, b"a", 1), StreamCut),
        (encode(Kind.STDOUT, b"ab") + encode(Kind.STDOUT, b"b", 1), StreamCut),
        (frame(Kind.GAP, {"stream": "stdout", "offset": 1, "bytes": 1}), StreamCut),
        (frame(Kind.GAP, {"stream": "stdout", "offset": 0, "bytes": 0}), ProtocolError),
        (frame(Kind.GAP, {"stream": "stdin", "offset": 0, "bytes": 1}), ProtocolError),
        (frame(Kind.EXIT, EXIT), StreamCut),
        (frame(Kind.EXIT, {**EXIT, "stdout_bytes": 0}) + encode(Kind.STDOUT, b"a"), ProtocolError),
        (frame(Kind.EXIT, {**EXIT, "signal": 9}), ProtocolError),
        (frame(Kind.START, []), ProtocolError),
        (frame(Kind.START, {"pid": 1}), ProtocolError),
        (frame(Kind.START, {**START, "exit": {"code": 0}}), ProtocolError),
        (encode(Kind.STDIN, b"a"), ProtocolError),
        (frame(Kind.ERROR, {"code": "sandbox_died", "detail": "the VM ended"}), SandboxDied),
        (b"HTTP/1.1 502 Bad Gateway", ProtocolError),
    ],
)
def test_a_stream_that_does_not_go_on_is_a_typed_error(body: bytes, fault: type[SpaceError]) -> None:
    follower = Follower(0, 0)
    follower.begin()
    with pytest.raises(fault):
        list(follower.receive(body))


def test_the_start_settles_offsets_that_were_no_numbers() -> None:
    follower = Follower(None, -10)
    assert follower.params() == {"stderr": "-10"}
    follower.begin()
    list(follower.receive(frame(Kind.START, {**START, "stdout_first": 7, "stdout_bytes": 9, "stderr_first": 100, "stderr_bytes": 105})))
    assert follower.params() == {"stdout": "7", "stderr": "100"}
    assert list(follower.receive(encode(Kind.STDERR, b"x", 101))) == [Output("stderr", 101, b"x")]
    follower.begin()
    with pytest.raises(StreamCut):
        list(follower.receive(encode(Kind.STDERR, b"x", 101)))


@pytest.mark.parametrize("fault", [StreamCut("cut"), ConnectionFailed("no"), Unavailable("away"), RateLimited("slowly")])
def test_connections_are_made_again_a_bounded_number_of_times_with_growing_pauses(fault: SpaceError) -> None:
    pauses = [wait_before_reattach(failures, fault, 1.0) for failures in range(1, FAILURES + 1)]
    assert pauses == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0, 5.0, None]
    assert wait_before_reattach(1, NotFound("no"), 1.0) is None


def test_what_comes_before_a_fault_in_one_piece_is_given_before_it_and_nothing_is_skipped() -> None:
    follower = Follower(0, 0)
    follower.begin()
    coming = follower.receive(encode(Kind.STDOUT, b"ab") + encode(Kind.STDOUT, b"cd", 2) + encode(Kind.STDOUT, b"x", 9))
    assert next(coming) == Output("stdout", 0, b"ab")
    assert follower.offsets["stdout"] == 2
    assert next(coming) == Output("stdout", 2, b"cd")
    with pytest.raises(StreamCut):
        next(coming)
    assert follower.params() == {"stdout": "4", "stderr": "0"}
    follower.begin()
    with pytest.raises(StreamCut):
        list(follower.receive(encode(Kind.STDOUT, b"x", 9) + encode(Kind.STDOUT, b"yz", 10)[:-1]))
    assert follower.salvage() == []
    assert follower.params() == {"stdout": "4", "stderr": "0"}
