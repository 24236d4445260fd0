"""The records of a spool: what was encoded comes back, whatever stands behind it; other bytes are no record, and no harm."""

from __future__ import annotations

import os
import random
import secrets
import time
from collections.abc import Iterator

from hypothesis import given
from hypothesis import strategies as st

from space.core.wire import spool
from space.core.wire.spool import END, FOOTER, HEAD, INPUT, OUTPUT, OVERHEAD, End, Head, Input

SECONDS = float(os.environ.get("SPACE_FUZZ_SECONDS", "1.5"))
PARTS = st.lists(st.tuples(st.integers(0, 1), st.binary(max_size=200)), max_size=20)


def rounds() -> Iterator[random.Random]:
    """Generators for as long as the fuzzing lasts."""
    seed = os.environ.get("SPACE_FUZZ_SEED")
    if seed is not None:
        yield random.Random(int(seed))
        return
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        seed = str(secrets.randbits(64))
        print(f"SPACE_FUZZ_SEED={seed}")  # pytest shows the last one when the round fails
        yield random.Random(int(seed))


def segment(parts: list[tuple[int, bytes]], *, ended: bool) -> tuple[bytes, list[int]]:
    """A segment with these outputs, and where each record ends."""
    head = Head("pr-0", 1, [b"x"], None, None, pty=False, stdin=True, started_us=0, tied=False, block=True, quota=1, stdout=5, stderr=6)
    data, lanes = spool.encode_struct(HEAD, head), [5, 6]
    ends = [len(data)]
    for lane, payload in parts:
        data += spool.encode(OUTPUT, payload, lane, lanes[lane])
        lanes[lane] += len(payload)
        ends.append(len(data))
    data += spool.encode_struct(INPUT, Input(9, closed=False))
    ends.append(len(data))
    if ended:
        data += spool.encode_struct(END, End(1, lanes[0], lanes[1], 9, code=0))
    return data, ends


@given(PARTS, st.booleans())
def test_what_goes_in_comes_out(parts: list[tuple[int, bytes]], ended: bool) -> None:
    data, _ = segment(parts, ended=ended)
    found = list(spool.records(data))
    assert [(each.lane, each.payload) for each in found if each.kind == OUTPUT] == parts
    scanned = spool.scan(data)
    assert scanned is not None
    assert (scanned.end is not None, scanned.input.bytes) == (ended, 9)
    assert scanned.size == len(data)
    assert scanned.stdout - 5 + scanned.stderr - 6 == sum(len(payload) for _, payload in parts)
    assert spool.read_end(data) == scanned.end
    assert spool.head_size(data) == next(spool.records(data)).end


@given(PARTS, st.data())
def test_a_change_of_any_byte_ends_the_reading_there(parts: list[tuple[int, bytes]], draw: st.DataObject) -> None:
    data, ends = segment(parts, ended=False)
    at = draw.draw(st.integers(0, len(data) - 1))
    broken = bytearray(data)
    broken[at] ^= draw.draw(st.integers(1, 255))
    whole = [end for end in ends if end <= at]
    found = list(spool.records(broken))
    assert [each.end for each in found] == whole
    scanned = spool.scan(broken)
    assert (scanned is None) == (not whole)
    assert scanned is None or scanned.size == whole[-1]


def test_random_and_mutated_bytes_are_read_within_bounds() -> None:
    for rest in rounds():
        parts = [(rest.randrange(2), rest.randbytes(rest.randrange(300))) for _ in range(rest.randrange(20))]
        data = bytearray(segment(parts, ended=rest.random() < 0.5)[0])
        for _ in range(rest.randrange(6)):
            at = rest.randrange(len(data))
            match rest.randrange(4):
                case 0:
                    data[at] = rest.randrange(256)
                case 1:
                    data[at:at] = rest.randbytes(rest.randrange(40))
                case 2:
                    del data[at : at + rest.randrange(40)]
                case _:
                    data[at:] = rest.randbytes(rest.randrange(200))
            if not data:
                data = bytearray(rest.randbytes(50))
        position = 0
        for record in spool.records(bytes(data)):
            assert record.end == position + OVERHEAD + len(record.payload)
            position = record.end
        assert position <= len(data)
        scanned = spool.scan(bytes(data))
        if scanned is not None:
            assert scanned.size <= position + FOOTER
            assert scanned.stdout >= scanned.head.stdout
        spool.read_end(bytes(data))
        spool.read_head(bytes(data))
        spool.head_size(bytes(data[:16]))


def test_a_whole_record_that_is_out_of_order_ends_the_segment() -> None:
    data, ends = segment([(0, b"abc")], ended=False)
    scanned = spool.scan(data + spool.encode(OUTPUT, b"later", 0, 999) + spool.encode(OUTPUT, b"x", 0, 8))
    assert scanned is not None
    assert (scanned.stdout, scanned.size) == (8, ends[-1])
