"""Messages from a guest are hostile."""

from __future__ import annotations

import msgspec
import pytest

from space.core.wire import guest
from space.model.errors import ProtocolError

EXITED = {
    "t": "exited",
    "code": 0,
    "signal": None,
    "oom_killed": False,
    "timed_out": False,
    "stdout_bytes": 0,
    "stderr_bytes": 0,
    "wall_ms": 0,
}


def packed(**changes: object) -> bytes:
    return msgspec.msgpack.encode(EXITED | changes)


REFUSED = {
    "nothing": b"",
    "not MessagePack": b"\xc1",
    "a list": b"\x90",
    "no tag": msgspec.msgpack.encode({"pid": 1}),
    "an unknown tag": msgspec.msgpack.encode({"t": "root"}),
    "a tag that is a number": msgspec.msgpack.encode({"t": 1}),
    "a request's field": packed(argv=[]),
    "a field missing": msgspec.msgpack.encode({"t": "started"}),
    "a code over 255": packed(code=256),
    "a negative code": packed(code=-1),
    "a float": packed(wall_ms=1.5),
    "a text for a number": packed(wall_ms="1"),
    "a number for a boolean": packed(oom_killed=1),
    "code and signal": packed(signal=9),
    "neither code nor signal": packed(code=None),
    "negative bytes": packed(stdout_bytes=-1),
    "a pid over 32 bits": msgspec.msgpack.encode({"t": "started", "pid": 1 << 32}),
    "a very long word": msgspec.msgpack.encode(
        {"t": "configured", "boot_id": "x" * 129, "kernel": "", "uptime_ms": 0, "disk_bytes": 0, "version": ""}
    ),
    "not UTF-8": b"\x82\xa1t\xa7started\xa3pi\xff\x01",
    "bytes after it": msgspec.msgpack.encode({"t": "done"}) + b"\xc0",
    "the tag twice": b"\x82\xa1t\xa4done\xa1t\xa4done",
    "a field twice": b"\x83\xa1t\xa7started\xa3pid\x01\xa3pid\x02",
    "a map header that is too long": b"\xde\x00\x01\xa1t\xa4done",
    "nested without end": b"\x82\xa1t\xa4done\xa1x" + b"\x91" * 60_000,
    "four billion entries": b"\xdf\xff\xff\xff\xff\xa1t\xa4done",
    "an unknown array of four billion": b"\x82\xa1t\xa4done\xa1x\xdd\xff\xff\xff\xff",
}


@pytest.mark.parametrize("payload", REFUSED.values(), ids=REFUSED.keys())
def test_message_is_refused(payload: bytes) -> None:
    with pytest.raises(ProtocolError, match=r"not well formed|a field twice"):
        guest.decode(payload)


def test_the_table_refuses_by_difference_alone() -> None:
    assert guest.decode(packed()) == guest.Exited(0, None, oom_killed=False, timed_out=False, stdout_bytes=0, stderr_bytes=0, wall_ms=0)


def test_another_message_than_expected_is_named() -> None:
    with pytest.raises(ProtocolError, match="answered Done, expected Started"):
        guest.expect(guest.Started, msgspec.msgpack.encode(guest.Done()))


def test_the_largest_numbers_pass() -> None:
    top = (1 << 64) - 1
    assert guest.expect(guest.TreeDone, msgspec.msgpack.encode(guest.TreeDone(top, top, 0xFFFFFFFF))).bytes == top
