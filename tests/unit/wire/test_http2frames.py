"""Frames are cut the same however their bytes arrive, and what may not follow is refused."""

from __future__ import annotations

import contextlib

import pytest
from hyperframe.frame import DataFrame, HeadersFrame, PingFrame, SettingsFrame, WindowUpdateFrame
from hyperframe.frame import Frame as Other
from hypothesis import given
from hypothesis import strategies as st

from space.core.wire.http2frames import CONTINUATION, HEADERS, MOST_BLOCK, PREFACE, BadFrames, Frame, FrameReader


def frame(kind: int, flags: int = 0, stream: int = 0, payload: bytes = b"") -> bytes:
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


SETTINGS = frame(4)


def library() -> bytes:
    """Frames that a library writes."""
    window = WindowUpdateFrame(0, window_increment=5)
    padded = DataFrame(3, b"padded", pad_length=7, flags=["PADDED", "END_STREAM"])
    frames: list[Other] = [SettingsFrame(0), HeadersFrame(3, b"\x82", flags=["END_HEADERS"]), window, padded, PingFrame(0, bytes(8))]
    return b"".join(one.serialize() for one in frames)


@given(st.lists(st.integers(1, 40)), st.booleans())
def test_frames_are_the_same_however_their_bytes_arrive(cuts: list[int], preface: bool) -> None:
    data = (PREFACE if preface else b"") + library()
    whole = FrameReader(preface=preface).receive(data)
    reader, pieces, at = FrameReader(preface=preface), [], 0
    for cut in [*cuts, len(data)]:
        pieces += reader.receive(data[at : at + cut])
        at += cut
    assert pieces == whole
    assert [(one.kind, one.stream) for one in whole] == [(4, 0), (1, 3), (8, 0), (0, 3), (6, 0)]
    assert (whole[3].content, len(whole[3].payload)) == (6, 14)
    assert not reader.waiting
    assert reader.frames == 5


@given(st.binary(max_size=400), st.booleans())
def test_any_bytes_are_frames_or_refused_and_nothing_is_lost(data: bytes, settled: bool) -> None:
    reader = FrameReader(preface=False)
    if settled:
        reader.receive(SETTINGS)
    frames: list[Frame] = []
    with contextlib.suppress(BadFrames):
        frames = reader.receive(data)
    assert data.startswith(b"".join(one.raw for one in frames))
    assert all(len(one.payload) <= 16_384 for one in frames)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"GET / HTTP/1.1\r\n", "preface"),
        (PREFACE[:-1] + b"x", "preface"),
        (PREFACE + frame(6, 0, 0, bytes(8)), "preface"),
        (PREFACE + frame(4, 1), "preface"),
        (PREFACE + SETTINGS + b"\0\x40\x01" + bytes(6), "frame_size"),
        (PREFACE + SETTINGS + frame(CONTINUATION, 4, 1), "continuation"),
        (PREFACE + SETTINGS + frame(HEADERS, 0, 1) + frame(CONTINUATION, 4, 3), "continuation"),
        (PREFACE + SETTINGS + frame(HEADERS, 0, 1) + frame(0, 0, 1), "continuation"),
        (PREFACE + SETTINGS + frame(HEADERS, 0, 0), "stream"),
        (PREFACE + SETTINGS + frame(HEADERS, 0, 1) + frame(CONTINUATION, 0, 1) * 17, "flood_head"),
        (PREFACE + SETTINGS + frame(HEADERS, 0, 1) + frame(CONTINUATION, 0, 1, bytes(16_384)) * (MOST_BLOCK // 16_384 + 1), "flood_head"),
    ],
)
def test_what_may_not_follow_is_refused(data: bytes, reason: str) -> None:
    with pytest.raises(BadFrames) as caught:
        FrameReader(preface=True).receive(data)
    assert caught.value.reason == reason


def test_a_head_and_a_frame_that_are_not_whole_are_waited_for_but_not_data() -> None:
    reader = FrameReader(preface=True)
    assert reader.waiting
    reader.receive(PREFACE + SETTINGS)
    assert not reader.waiting
    reader.receive(frame(0, 0, 1, b"some data")[:-1])
    assert not reader.waiting
    reader.receive(b"a" + frame(HEADERS, 0, 1))
    assert reader.waiting
    reader.receive(frame(CONTINUATION, 4, 1) + frame(6, 0, 0, bytes(8))[:12])
    assert reader.waiting
