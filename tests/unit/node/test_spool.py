"""A process's output on the disk: cut off anywhere it is read again up to there; the oldest goes first; a full disk loses nothing."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from space.core.wire import spool as codec
from space.core.wire.spool import End, Head
from space.node.spool import Account, Piece, Spool, spools_in

NAME = "pr-0123456789abcdef"


def head(quota: int = 16 << 20, argv: tuple[bytes, ...] = (b"true",)) -> Head:
    return Head(NAME, 7, list(argv), None, None, pty=False, stdin=True, started_us=1, tied=False, block=False, quota=quota)


def everything(spool: Spool, position: int = 0) -> tuple[list[bytes], list[Piece]]:
    lanes, pieces = [b"", b""], []
    while position < spool.tail:
        batch = spool.read(position)
        for piece in batch.pieces:
            lanes[piece.lane] += piece.payload
            pieces.append(piece)
        assert batch.next > position
        position = batch.next
    return lanes, pieces


def loaded(directory: Path) -> Spool | None:
    return Spool.load(directory, NAME, spools_in(directory).get(NAME, []), Account())


def test_what_was_written_is_read_in_its_order_from_memory_and_from_the_disk(tmp_path: Path) -> None:
    account = Account()
    spool = Spool.begin(tmp_path / "sb", head(), account)
    written = [(index % 2, b"%d\n" % index) for index in range(1000)]
    for lane, data in written:
        spool.output(lane, data)
    assert [(each.lane, each.payload) for each in everything(spool)[1]] == written, "from memory, before it is on the disk"
    assert not (tmp_path / "sb").exists()
    spool.flush()
    assert [(each.lane, each.payload) for each in everything(spool)[1]] == written, "from the disk"
    files = list((tmp_path / "sb").iterdir())
    assert sum(each.stat().st_size for each in files) == spool.size == account.bytes
    assert {each.stat().st_mode & 0o777 for each in files} == {0o600}
    spool.remove()
    assert (list((tmp_path / "sb").iterdir()), account.bytes) == ([], 0)


def test_every_offset_finds_its_place(tmp_path: Path) -> None:
    spool = Spool.begin(tmp_path, head(quota=512 << 10), Account())
    rest = random.Random(1)
    for _ in range(300):
        spool.output(rest.randrange(2), rest.randbytes(rest.randrange(1, 4000)))
    spool.flush()
    lanes, _ = everything(spool)
    for _ in range(50):
        out, err = rest.randrange(spool.lanes[0] + 1), rest.randrange(spool.lanes[1] + 1)
        found = [bytearray(lanes[0][:out]), bytearray(lanes[1][:err])]
        for lane, offset, payload in everything(spool, spool.seek(out, err))[1]:
            skip = len(found[lane]) - offset
            assert skip >= 0, "there is a gap"
            found[lane] += payload[skip:]
        assert found == lanes


def test_the_oldest_goes_by_whole_segments_and_its_offsets_are_remembered(tmp_path: Path) -> None:
    account = Account()
    spool = Spool.begin(tmp_path, head(quota=1 << 20), account)
    for index in range(40):
        spool.output(0, bytes([index]) * 50_000)
        spool.flush()
    before = spool.size
    assert spool.drop_oldest()
    assert spool.first[0] == 100_000, "a segment of 128 KiB holds two of these"
    assert spool.size < before
    batch = spool.read(0)
    assert batch.jumped == spool.first
    assert (batch.pieces[0].offset, batch.pieces[0].payload[0]) == (100_000, 2)
    while spool.drop_oldest():
        pass
    assert spool.size < 64 << 10
    assert account.bytes == spool.size == sum(each.stat().st_size for each in tmp_path.iterdir())
    again = loaded(tmp_path)
    assert again is not None
    assert (again.first, again.lanes, again.head.pid) == (spool.first, spool.lanes, 7)


def test_an_end_is_seen_from_the_tail_of_the_file(tmp_path: Path) -> None:
    spool = Spool.begin(tmp_path, head(argv=(b"a" * 50_000,)), Account())
    spool.output(0, b"out")
    spool.output(1, b"error")
    spool.input(12, closed=True)
    end = End(5, 3, 5, 12, code=3, stdout_bytes=3, stderr_bytes=5, wall_ms=9)
    spool.finish(end)
    spool.flush()
    spool.light()
    assert spool.head.argv == []
    again = loaded(tmp_path)
    assert again is not None
    assert (again.end, again.lanes, again.stdin.bytes) == (end, [3, 5], 12)
    assert everything(again)[0] == [b"out", b"error"]
    again.light()
    assert again.argv() == spool.argv() == [b"a" * 50_000]


@pytest.mark.parametrize("rubbish", [b"", b"\0" * 30, b"\xff" * 100], ids=["cut off", "zeros", "other bytes"])
def test_a_torn_tail_costs_what_was_torn_at_every_byte(tmp_path: Path, rubbish: bytes) -> None:
    spool = Spool.begin(tmp_path, head(), Account())
    sizes, outputs = [], []
    for index in range(4):
        spool.output(index % 2, b"%d" % index * 9)
        spool.flush()
        sizes.append(spool.size)
        outputs.append([bytes(each) for each in everything(spool)[0]])
    spool.finish(End(1, spool.lanes[0], spool.lanes[1], 0, code=0))
    spool.flush()
    (path,) = tmp_path.iterdir()
    whole = path.read_bytes()
    bare = len(codec.encode_struct(codec.HEAD, head()))
    for size in range(len(whole)):
        path.write_bytes(whole[:size] + rubbish)
        again = loaded(tmp_path)
        if size < bare:
            assert again is None
            assert not path.exists()
            continue
        assert again is not None
        known = [at for at, end in enumerate(sizes) if end <= size]
        assert again.end is None
        assert everything(again)[0] == (outputs[known[-1]] if known else [b"", b""])
        again.output(0, b"more")
        again.flush()
        once_more = loaded(tmp_path)
        assert once_more is not None
        assert everything(once_more)[0][0] == everything(again)[0][0]


def test_a_segment_that_is_torn_at_its_begin_leaves_those_before(tmp_path: Path) -> None:
    spool = Spool.begin(tmp_path, head(quota=512 << 10), Account())
    for index in range(5):
        spool.output(0, bytes([index]) * 50_000)
    spool.flush()
    last = max(tmp_path.iterdir())
    last.write_bytes(last.read_bytes()[:10])
    again = loaded(tmp_path)
    assert again is not None
    assert again.lanes == [200_000, 0]
    assert not last.exists()
    again.output(0, b"on")
    again.flush()
    assert everything(again)[0][0][200_000:] == b"on"


def test_what_rots_in_the_middle_is_jumped_over(tmp_path: Path) -> None:
    spool = Spool.begin(tmp_path, head(quota=512 << 10), Account())
    for index in range(5):
        spool.output(0, bytes([index]) * 50_000)
    spool.flush()
    second = sorted(tmp_path.iterdir())[1]
    with second.open("r+b") as file:
        file.seek(1000)
        file.write(b"rotten")
    pieces = everything(spool)[1]
    assert [piece.payload[0] for piece in pieces] == [0, 2, 3, 4]


def test_a_disk_that_is_full_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spool = Spool.begin(tmp_path, head(quota=512 << 10), Account())
    room = 0
    real = os.pwrite

    def pwrite(descriptor: int, data: bytes, at: int) -> int:
        nonlocal room
        if not room:
            raise OSError(28, "No space left on device")
        taken = min(room, len(data))
        room -= taken
        return real(descriptor, data[:taken], at)

    monkeypatch.setattr(os, "pwrite", pwrite)
    rest = random.Random(2)
    sent = b""
    for _ in range(100):
        data = rest.randbytes(rest.randrange(1, 20_000))
        sent += data
        spool.output(0, data)
        while True:
            try:
                spool.flush()
                break
            except OSError:
                assert spool.unwritten
                room += rest.randrange(1, 30_000)
        assert everything(spool)[0][0] == sent
    again = loaded(tmp_path)
    assert again is not None
    assert everything(again)[0][0] == sent


def test_memory_holds_little_for_readers_and_nothing_without(tmp_path: Path) -> None:
    spool = Spool.begin(tmp_path, head(), Account())
    for watched, most in ((False, 0), (True, 256 << 10)):
        spool.watched = watched
        for _ in range(100):
            spool.output(0, bytes(10_000))
            spool.flush()
        assert spool._recent_bytes <= most
    for _ in range(5000):
        spool.output(0, b"x")
        spool.flush()
    assert len(spool._recent) <= 512
