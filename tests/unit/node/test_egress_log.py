"""What the gateway decided, as the node tells control: both chains in the order of time, each record once, over any number of streams."""

from __future__ import annotations

import asyncio
import json
import random
import socket
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from space.audit.records import Dialled, Kept, Note, Requested, encode
from space.core.wire.events import NODE
from space.model.errors import InvalidArgument, Unavailable, Unsupported
from space.node.egress_log import EgressLog
from space.rpc import node_api as api
from space.rpc.audit_client import AuditControl, RecordSocket
from space.rpc.packets import pair
from space.rpc.session import Message, Served, Session, Stream
from space.testing.brokerprocess import AuditProcess

ONE, OTHER = "sb-" + "a" * 20, "sb-" + "b" * 20


@pytest.fixture
def audit(tmp_path: Path) -> Iterator[AuditProcess]:
    process = AuditProcess(tmp_path, "--file-bytes", "30000", "--files", "1000")
    process.start()
    yield process
    process.stop()


@asynccontextmanager
async def session(audit: AuditProcess, tmp_path: Path) -> AsyncIterator[Session]:
    """Control's, with a node that has this verb alone."""
    verbs = EgressLog(audit.socket).verbs

    async def handle(stream: Stream, verb: str, request: bytes) -> None:
        if verb not in verbs:
            raise Unsupported(verb)
        await verbs[verb](stream, request)

    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(tmp_path / "node.sock"))
    listener.listen()
    listener.setblocking(False)

    async def accept() -> None:
        peer, _ = await asyncio.get_running_loop().sock_accept(listener)
        one = Served(NODE, handle)
        await one.attach([peer])
        await asyncio.shield(one.finished)

    accepting = asyncio.create_task(accept())
    try:
        made = await Session.connect(tmp_path / "node.sock")
        yield made
        await made.aclose()
    finally:
        accepting.cancel()
        await asyncio.gather(accepting, return_exceptions=True)
        listener.close()


class Writers:
    """Sources of both chains."""

    def __init__(self, client: AuditControl) -> None:
        self._client = client
        self._sockets: dict[tuple[str, str], RecordSocket] = {}

    async def write(self, record: Kept) -> None:
        chain = "dialer" if isinstance(record, Dialled) else "gateway"
        key = (chain, "" if chain == "dialer" else record.sandbox)
        if key not in self._sockets:
            theirs, ours = pair()
            await self._client.bind_source(theirs, chain, key[1], 1)
            self._sockets[key] = RecordSocket(ours)
        number = self._sockets[key].number()
        await self._sockets[key].written(number, encode(Note(record, number)))


def asked(number: int, sandbox: str = ONE, **fields: Any) -> Requested:
    return Requested(sandbox=sandbox, id=f"r{number}", name="www.example.com", port=443, **fields)


def dialled(number: int, sandbox: str = ONE) -> Dialled:
    return Dialled(sandbox=sandbox, name=f"d{number}.example.com", port=443, address="192.0.2.1")


async def pages(session: Session, **fields: Any) -> AsyncGenerator[api.EgressRecords, None]:
    async with await session.open("egress_log", api.EgressLog(**fields), finish=True) as stream:
        async for event in stream:
            assert isinstance(event, Message)
            yield msgspec.msgpack.decode(event.payload, type=api.EgressRecords)


def ids(page: api.EgressRecords) -> list[str]:
    found = [json.loads(record.line) for record in page.records]
    assert [record.n for record in page.records] == [fields["n"] for fields in found]
    return [fields.get("id") or fields["name"].partition(".")[0] for fields in found]


async def test_both_chains_come_in_the_order_of_time_and_end(audit: AuditProcess, tmp_path: Path) -> None:
    client = AuditControl.connect(audit.socket)
    writers = Writers(client)
    expected: list[str] = []
    for number in range(260):
        await asyncio.sleep(0.001)  # times have milliseconds
        if number % 3 == 0:
            await writers.write(dialled(number))
            expected.append(f"d{number}")
        else:
            await writers.write(asked(number, sandbox=ONE if number % 2 else OTHER))
            expected += [f"r{number}"] if number % 2 else []
    async with session(audit, tmp_path) as control:
        found = [name async for page in pages(control, sandbox=ONE) for name in ids(page)]
        assert found == expected
        # In parts, each from where the one before it ended.
        places: dict[str, int] = {}
        again: list[str] = []
        while True:
            part = [page async for page in pages(control, sandbox=ONE, after=places, limit=7)]
            names = [name for page in part for name in ids(page)]
            places = part[-1].places
            if not names:
                break
            again += names
        assert again == expected
    client.close()


async def test_a_follower_is_told_what_comes_from_now_on_or_from_a_place(audit: AuditProcess, tmp_path: Path) -> None:
    client = AuditControl.connect(audit.socket)
    writers = Writers(client)
    await writers.write(asked(1))
    async with session(audit, tmp_path) as control:
        following = pages(control, sandbox=ONE, follow=True)
        first = await anext(following)
        assert (first.records, first.places) == ([], {"gateway": 1, "dialer": 0})
        await writers.write(dialled(2))
        await writers.write(asked(3, OTHER))
        await writers.write(asked(4))
        found: list[str] = []
        while len(found) < 2:
            page = await anext(following)
            found += ids(page)
        assert sorted(found) == ["d2", "r4"]
        assert page.places == {"gateway": 3, "dialer": 1}
        await following.aclose()
        from_place = pages(control, follow=True, after={"gateway": 1})
        found = []
        while len(found) < 3:
            found += ids(await anext(from_place))
        assert sorted(found) == ["d2", "r3", "r4"]
        await from_place.aclose()
    client.close()


async def test_streams_that_break_anywhere_give_each_record_once(audit: AuditProcess, tmp_path: Path) -> None:
    client = AuditControl.connect(audit.socket)
    writers = Writers(client)
    chance = random.Random(9)

    async def write() -> None:
        for number in range(150):
            await writers.write(dialled(number) if number % 4 == 0 else asked(number))
            await asyncio.sleep(chance.choice([0, 0, 0.003]))

    async with session(audit, tmp_path) as control:
        writing = asyncio.create_task(write())
        places: dict[str, int] = {}
        found: list[str] = []
        while len(found) < 150:
            following = pages(control, sandbox=ONE, follow=True, after=places)
            for _ in range(chance.randint(1, 4)):
                page = await anext(following)
                found += ids(page)
                places = page.places
            await following.aclose()
        await writing
    assert sorted(found) == sorted(f"d{number}" if number % 4 == 0 else f"r{number}" for number in range(150))
    client.close()


async def test_a_keeper_that_is_away_is_unavailable_and_found_again(audit: AuditProcess, tmp_path: Path) -> None:
    async with session(audit, tmp_path) as control:
        assert [page.records async for page in pages(control)] == [[]]
        audit.stop()
        with pytest.raises(Unavailable):
            _ = [page async for page in pages(control)]
        audit.start()
        assert [page.records async for page in pages(control)] == [[]]
        with pytest.raises(InvalidArgument):
            _ = [page async for page in pages(control, after={"other": 1})]
