"""Records are read by place while they are written: each once, in order, whatever was rotated away. Readers hold up no writer."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from space.audit import reading
from space.audit.files import lines_of
from space.audit.reading import Filter
from space.audit.records import Connected, Kept, NameDecided, Note, Requested, encode
from space.auditd.chainfile import ChainFile, Keeping
from space.model.errors import NotFound
from space.rpc.audit_client import AuditControl, RecordSocket
from space.rpc.packets import pair
from space.testing.brokerprocess import AuditProcess

ONE, OTHER = "sb-" + "a" * 20, "sb-" + "b" * 20


def at(second: int) -> str:
    return f"2026-11-30T{second // 3600:02}:{second // 60 % 60:02}:{second % 60:02}.000Z"


def chain(directory: Path, count: int, *, size: int = 4000, files: int = 1000, begin: int = 0) -> ChainFile:
    file = ChainFile(directory, "gateway", Keeping(size=size, files=files), time.time)
    for number in range(begin, begin + count):
        sandbox = ONE if number % 3 else OTHER
        file.append(
            [
                {
                    "at": f"2026-11-30T00:{number // 60:02}:{number % 60:02}.000Z",
                    "sandbox": sandbox,
                    "type": "name",
                    "text": "x" * (number % 90),
                }
            ]
        )
    return file


def numbers(lines: list[bytes]) -> list[int]:
    return [json.loads(line)["n"] for line in lines]


@pytest.mark.parametrize("size", [1, 700, 4000, 1 << 20])
def test_pages_hold_every_record_once_from_every_place(tmp_path: Path, size: int) -> None:
    file = chain(tmp_path, 120, size=size)
    chance = random.Random(size)
    for begin in (0, 1, 59, 119, 120):
        found: list[int] = []
        place, more = begin, True
        while more:
            page = reading.page(tmp_path, "gateway", place, end=120, most=chance.randint(1, 30), most_bytes=chance.choice([1, 900, 65_536]))
            found += numbers(page.lines)
            place, more = page.place, page.more
        assert found == list(range(begin + 1, 121))
        assert place == 120
    file.close()


def test_a_sandboxs_records_are_its_own_whatever_another_writes_into_its_fields(tmp_path: Path) -> None:
    file = chain(tmp_path, 30)
    file.append([{"sandbox": OTHER, "name": f'","sandbox":"{ONE}"', "reason": 'x","sandbox":"' + ONE}])
    page = reading.page(tmp_path, "gateway", 0, end=31, wanted=Filter(ONE))
    assert numbers(page.lines) == [number + 1 for number in range(30) if number % 3]
    assert page.place == 31
    assert numbers(reading.page(tmp_path, "gateway", 0, end=31, wanted=Filter(denied=True)).lines) == [31]
    file.close()


def test_what_was_removed_is_told_once_and_reading_goes_on(tmp_path: Path) -> None:
    file = chain(tmp_path, 200, size=700, files=4)
    begin = file.expired()
    assert begin is not None
    file.remove(*begin, b"m")
    page = reading.page(tmp_path, "gateway", 3, end=200, most=1000)
    assert page.removed == begin[0]
    assert numbers(page.lines) == list(range(begin[0] + 1, 201))
    assert reading.page(tmp_path, "gateway", begin[0], end=200).removed == 0
    file.close()


@pytest.mark.parametrize("second", [0, 1, 17, 100, 199, 200, 5000])
def test_since_begins_at_that_time(tmp_path: Path, second: int) -> None:
    file = chain(tmp_path, 200, size=900)
    page = reading.page(tmp_path, "gateway", 0, end=200, wanted=Filter(since=at(second)), most=1000, most_looked_at=1 << 20)
    assert numbers(page.lines) == list(range(second + 1, 201))
    file.close()


def test_what_is_not_whole_or_behind_the_end_is_not_told(tmp_path: Path) -> None:
    file = chain(tmp_path, 5)
    with next(tmp_path.glob("*.jsonl")).open("ab") as raw:
        raw.write(b'{"n":6,"sandbox":"')
    assert numbers(reading.page(tmp_path, "gateway", 0, end=6).lines) == [1, 2, 3, 4, 5]
    assert numbers(reading.page(tmp_path, "gateway", 0, end=3).lines) == [1, 2, 3]
    file.close()


def test_a_page_looks_at_a_bounded_part_of_a_large_file(tmp_path: Path) -> None:
    file = ChainFile(tmp_path, "gateway", Keeping(size=1 << 30), time.time)
    file.append([{"sandbox": OTHER, "text": "x" * 200}] * 60_000)
    file.append([{"sandbox": ONE}])
    places, place, more = [], 0, True
    while more:
        page = reading.page(tmp_path, "gateway", place, end=60_001, wanted=Filter(ONE))
        place, more = page.place, page.more
        places.append(place)
    assert len(places) > 50  # each looked at a quarter of a MiB
    assert numbers(page.lines) == [60_001]
    began = time.process_time()
    reading.page(tmp_path, "gateway", 59_990, end=60_001)
    near = time.process_time() - began
    began = time.process_time()
    assert len(list(lines_of(next(tmp_path.glob("*.jsonl"))))) == 60_001
    assert near < (time.process_time() - began) / 3  # found, not read up to
    file.close()


# -- the process ------------------------------------------------------------------------------------------------------


@pytest.fixture
def audit(tmp_path: Path) -> Iterator[AuditProcess]:
    process = AuditProcess(tmp_path, "--file-bytes", "20000")
    process.start()
    yield process
    process.stop()


class Source:
    def __init__(self, ours: Any) -> None:
        self._socket = RecordSocket(ours)

    async def written(self, record: Kept) -> None:
        number = self._socket.number()
        await self._socket.written(number, encode(Note(record, number)))


async def source(client: AuditControl, sandbox: str, writer: str = "gateway") -> Source:
    theirs, ours = pair()
    await client.bind_source(theirs, writer, sandbox, 1)
    return Source(ours)


def asked(sandbox: str, number: int, **fields: Any) -> Requested:
    return Requested(sandbox=sandbox, id=f"r{number}", name="www.example.com", port=443, **fields)


async def test_a_follower_gets_what_comes_and_only_its_sandboxs(audit: AuditProcess) -> None:
    client = AuditControl.connect(audit.socket)
    one, other = await source(client, ONE), await source(client, OTHER)
    for number in range(3):
        await other.written(asked(OTHER, number))
    waiting = asyncio.ensure_future(client.follow("gateway", ONE, 0, seconds=30))
    everything = asyncio.ensure_future(client.follow("gateway", "", None, seconds=30))
    await asyncio.sleep(0.05)
    assert not waiting.done()
    await other.written(asked(OTHER, 3))
    page = await everything
    assert [json.loads(line)["id"] for line in page.records] == ["r3"]
    assert not waiting.done()
    await one.written(asked(ONE, 4))
    page = await waiting
    assert [json.loads(line)["id"] for line in page.records] == ["r4"]
    assert (page.place, page.removed) == (5, 0)
    began = time.monotonic()
    empty = await client.follow("gateway", ONE, page.place, seconds=0.2)
    assert (empty.records, empty.place, empty.more) == ([], 5, False)
    assert time.monotonic() - began >= 0.2
    client.close()


async def test_followers_that_come_and_go_miss_nothing_of_a_busy_chain(audit: AuditProcess) -> None:
    client = AuditControl.connect(audit.socket)
    sources = {sandbox: await source(client, sandbox) for sandbox in (ONE, OTHER)}
    chance = random.Random(6)

    async def write(sandbox: str) -> None:
        for number in range(150):
            await sources[sandbox].written(asked(sandbox, number, path="/" + "x" * chance.randrange(200)))
            if chance.random() < 0.1:
                await asyncio.sleep(0.01)

    async def follow(sandbox: str, count: int) -> list[str]:
        found: list[str] = []
        place = 0
        while len(found) < count:
            page = await client.follow("gateway", sandbox, place, limit=chance.randint(1, 50), seconds=chance.choice([0.0, 0.01, 5.0]))
            assert page.removed == 0
            found += [json.loads(line)["id"] for line in page.records]
            place = page.place
        return found

    everything = [f"r{number}" for number in range(150)]
    one, other, both, *_ = await asyncio.gather(follow(ONE, 150), follow(OTHER, 150), follow("", 300), write(ONE), write(OTHER))
    assert one == other == everything
    assert sorted(both) == sorted(everything * 2)
    client.close()


async def test_denials_can_be_asked_for_alone(audit: AuditProcess) -> None:
    client = AuditControl.connect(audit.socket)
    one = await source(client, ONE)
    await one.written(NameDecided(sandbox=ONE, name="a.example.com", qtype=1, address="198.18.0.1"))
    await one.written(NameDecided(sandbox=ONE, name="b.example.com", qtype=1, reason="name_not_allowed"))
    page = await client.read("gateway", ONE, denied=True)
    assert [json.loads(line)["name"] for line in page.records] == ["b.example.com"]
    with pytest.raises(NotFound):
        await client.read("nobody")
    client.close()


async def test_a_hundred_followers_and_readers_do_not_hold_up_a_writer(audit: AuditProcess) -> None:
    client = AuditControl.connect(audit.socket)
    one = await source(client, ONE)

    async def written(count: int) -> float:
        began = time.monotonic()
        for number in range(count):
            await one.written(asked(ONE, number))
        return time.monotonic() - began

    await written(500)
    alone = min([await written(200) for _ in range(3)])
    followers = [asyncio.ensure_future(client.follow("gateway", OTHER, None, seconds=30)) for _ in range(100)]
    reading_all = True

    async def read() -> None:
        while reading_all:
            await client.read("gateway", OTHER, 0, limit=1000)

    reader = asyncio.ensure_future(read())
    await asyncio.sleep(0.1)
    beside = min([await written(200) for _ in range(3)])
    reading_all = False
    await reader
    assert not any(follower.done() for follower in followers)
    for follower in followers:
        follower.cancel()
    assert beside < alone * 4 + 0.2, (alone, beside)
    client.close()


async def test_a_record_that_no_line_can_hold_ends_its_source_and_loses_nobody_elses(audit: AuditProcess) -> None:
    client = AuditControl.connect(audit.socket)
    one, other = await source(client, ONE), await source(client, OTHER)
    wide = "\1" * 2048
    huge = Requested(sandbox=ONE, id=wide, name=wide, port=1, method=wide, path=wide, rule=wide, reason="", upstream=wide)
    one._socket.note(encode(Note(huge)))
    for number in range(3):
        await other.written(asked(OTHER, number))
    await asyncio.sleep(0.1)
    kinds = [json.loads(line)["type"] for line in (await client.read("gateway")).records]
    assert sorted(kinds) == ["malformed", "request", "request", "request"]
    await other.written(Connected(sandbox=OTHER, id="c", name="\1" * 2000, port=1, reason="\1" * 2000))
    client.close()
