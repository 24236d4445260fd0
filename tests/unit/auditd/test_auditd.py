"""The keeper as a process beside a real broker: identity is the socket, nothing is lost by a kill, nothing is changed unseen."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import resource
import socket
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from space.audit.files import FilesVerified, Wanted, export, segments, verify_files
from space.audit.publickey import PublicKey
from space.audit.records import CredentialRead, Dialled, Kept, NameDecided, Note, Requested, encode
from space.model.errors import Conflict, NoCapacity, NotFound, Unavailable
from space.rpc.audit_client import AuditControl, RecordSocket
from space.rpc.broker_client import BrokerControl
from space.rpc.packets import pair
from space.testing.brokerprocess import AuditProcess, BrokerProcess

EVERYTHING = Wanted()
ONE, OTHER = "sb-" + "a" * 20, "sb-" + "b" * 20


def asked(number: int = 0, **fields: Any) -> Requested:
    return Requested(**{"sandbox": ONE, "id": f"r{number}", "name": "www.example.com", "port": 443, "status": 200, **fields})


def denied(name: str = "evil.example.com", reason: str = "unlisted") -> NameDecided:
    return NameDecided(sandbox=ONE, name=name, qtype=1, reason=reason)


def credential(number: int) -> CredentialRead:
    return CredentialRead(sandbox=ONE, id=f"c{number}", grant="g1", name="api.example.com", port=443)


class Source:
    """A worker's end."""

    def __init__(self, sock: socket.socket) -> None:
        self.raw = sock
        self._socket = RecordSocket(sock)

    def note(self, *records: Kept) -> None:
        for record in records:
            self._socket.note(encode(Note(record)))

    async def written(self, record: Kept) -> None:
        number = self._socket.number()
        await self._socket.written(number, encode(Note(record, number)))


class Pair:
    """Broker and keeper."""

    def __init__(self, directory: Path, *more: str) -> None:
        self.broker, self.audit = BrokerProcess(directory), AuditProcess(directory, *more)

    def start(self, **options: Any) -> None:
        if self.broker.process is None:
            self.broker.start()
        self.audit.start(**options)

    def stop(self) -> None:
        self.audit.stop()
        self.broker.stop()

    @asynccontextmanager
    async def control(self, *, broker: bool = True) -> AsyncIterator[AuditControl]:
        client = AuditControl.connect(self.audit.socket)
        try:
            if broker:
                await self.join(client)
            yield client
        finally:
            client.close()

    async def join(self, client: AuditControl) -> None:
        theirs, ours = pair()
        toward = BrokerControl.connect(self.broker.socket)
        await toward.bind_writer(theirs, ("gateway", "dialer"))
        await client.bind_broker(ours)
        toward.close()

    async def verified(self, writer: str = "gateway") -> FilesVerified:
        toward = BrokerControl.connect(self.broker.socket)
        try:
            return verify_files(self.audit.data, writer, PublicKey(await toward.head_key()), floor=await toward.head(writer))
        finally:
            toward.close()

    def records(self, writer: str = "gateway", wanted: Wanted = EVERYTHING) -> list[dict[str, Any]]:
        return [json.loads(line) for line in export(self.audit.data, writer, wanted)]


async def source(client: AuditControl, sandbox: str = ONE, generation: int = 1, writer: str = "gateway") -> Source:
    theirs, ours = pair()
    await client.bind_source(theirs, writer, sandbox, generation)
    return Source(ours)


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 - another process's file
        await asyncio.sleep(0.01)


@pytest.fixture
def both(tmp_path: Path) -> Iterator[Pair]:
    pair_ = Pair(tmp_path)
    pair_.start()
    yield pair_
    pair_.stop()


async def test_sandbox_generation_and_time_are_the_sockets_and_a_lie_is_told(both: Pair) -> None:
    async with both.control() as client:
        one, again, dialer = await source(client), await source(client, ONE, 2), await source(client, "", 0, "dialer")
        await one.written(asked(1))
        await again.written(asked(2, sandbox=OTHER, query=("q", "token")))
        dialled = Dialled(sandbox=OTHER, name="www.example.com", port=443, address="192.0.2.1", generation=3)
        await dialer.written(dialled)
        await one.written(msgspec.structs.replace(dialled, sandbox=ONE, generation=99))
    first, second, third = both.records()
    assert (first["sandbox"], first["generation"], first["type"], first["status"]) == (ONE, 1, "request", 200)
    assert (second["sandbox"], second["generation"], second["claimed"], second["query"]) == (ONE, 2, OTHER, ["q", "token"])
    assert first["at"].endswith("Z")
    assert "claimed" not in first
    assert (third["sandbox"], third["generation"]) == (ONE, 1)
    lines = list(export(both.audit.data, "gateway", EVERYTHING))
    assert [line.count(b"generation") for line in lines] == [1, 1, 1]
    assert [(record["sandbox"], record["generation"]) for record in both.records("dialer")] == [(OTHER, 3)]


async def test_heads_are_vouched_for_within_a_second_and_at_the_end(both: Pair) -> None:
    async with both.control() as client:
        one = await source(client)
        await one.written(asked(1))
        async with asyncio.timeout(5):
            while (await client.status()).chains[0].vouched < 1:  # noqa: ASYNC110 - another process
                await asyncio.sleep(0.02)
        one.note(*(asked(number) for number in range(200)))
        assert both.audit.stop() == 0
    found = await both.verified()
    assert (found.records, found.unvouched, found.findings) == (201, 0, ())
    assert (await both.verified("dialer")).intact


async def test_nothing_is_done_while_nothing_is_new(both: Pair) -> None:
    async with both.control() as client:
        one = await source(client)
        await one.written(asked(1))
        await until(lambda: (both.audit.data / "gateway.head").read_bytes().find(b'"n":1,') > 0)
        assert both.audit.process is not None
        await asyncio.sleep(0.3)
        before = switches(both.audit.process.pid)
        await asyncio.sleep(2.5)
        assert switches(both.audit.process.pid) == before


def switches(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if "ctxt_switches" in line)


async def test_a_record_that_was_answered_outlives_a_kill_at_any_moment(both: Pair) -> None:
    told = 0
    for attempt in range(5):
        async with both.control() as client:
            one = await source(client)
            number = told

            async def talk(one: Source = one) -> None:
                nonlocal told
                while True:
                    one.note(asked(-1), asked(-2))
                    await one.written(credential(told + 1))
                    told += 1

            talking = asyncio.create_task(talk())
            await until(lambda number=number, attempt=attempt: told > number + 7 * attempt)  # type: ignore[misc]
            both.audit.kill()
            with pytest.raises(Unavailable):
                await talking
        if attempt % 2:
            newest = segments(both.audit.data, "gateway")[-1].path
            with newest.open("ab") as file:
                file.write(b'{"n":99,"at":"torn')
        both.start()
    assert "torn record" in both.audit.log.read_text()
    async with both.control():
        pass
    both.audit.stop()
    kept = [record["id"] for record in both.records(wanted=Wanted(kinds=frozenset({"credential"})))]
    assert set(kept) >= {f"c{number}" for number in range(1, told + 1)}
    assert told > 30
    found = await both.verified()
    assert found.findings == ()
    assert found.unvouched == 0


async def test_files_follow_each_other_and_removed_ones_are_said_to_be_removed(tmp_path: Path) -> None:
    both = Pair(tmp_path, "--file-bytes", "4096", "--files", "3")
    both.start()
    try:
        async with both.control() as client:
            one = await source(client)
            for number in range(200):
                await one.written(asked(number))
            await until(lambda: (both.audit.data / "gateway.base").exists())
        both.audit.kill()
        both.start()
        async with both.control() as client:
            one = await source(client)
            for number in range(200, 260):
                await one.written(asked(number))
        both.audit.stop()
        present = segments(both.audit.data, "gateway")
        assert len(present) == 3
        assert present[0].first > 100
        found = await both.verified()
        assert (found.records, found.findings) == (260, ())
        assert all(segment.path.stat().st_size <= 4096 for segment in present)
        kept = present[1].path.read_bytes()
        present[1].path.unlink()
        assert [finding.problem for finding in (await both.verified()).findings] == ["out_of_order"]
        present[1].path.write_bytes(kept)
        present[0].path.unlink()
        assert not (await both.verified()).intact
    finally:
        both.stop()


async def test_every_hand_at_the_files_is_found_where_it_was(both: Pair) -> None:
    async with both.control() as client:
        one = await source(client)
        for number in range(12):
            await one.written(asked(number))
    both.audit.stop()
    path = segments(both.audit.data, "gateway")[0].path
    right = path.read_bytes().splitlines(keepends=True)
    forged = right[4].replace(b"www.example.com", b"ok.example.com!")
    for lines, problem, line in (
        ([*right[:4], forged, *right[5:]], "changed", 5),
        ([*right[:4], *right[5:]], "out_of_order", 5),
        ([*right[:4], right[5], right[4], *right[6:]], "out_of_order", 5),
        (right[:9], "cut_off", 0),
        ([*right[:11], right[11][:-30]], "torn", 12),
        ([*right, right[11]], "out_of_order", 13),
    ):
        path.write_bytes(b"".join(lines))
        found = await both.verified()
        assert (found.findings[0].problem, found.findings[0].line) == (problem, line)
        assert not found.intact
    path.write_bytes(b"".join(right))
    assert (await both.verified()).intact


async def test_files_put_back_with_their_older_head_are_found_and_take_no_credential_events(both: Pair) -> None:
    async with both.control() as client:
        await (await source(client)).written(asked(1))
    both.audit.stop()
    older = {path: path.read_bytes() for path in both.audit.data.iterdir() if path.is_file()}
    both.start()
    async with both.control() as client:
        await (await source(client)).written(asked(2))
    both.audit.stop()
    for path, data in older.items():
        path.write_bytes(data)
    assert [finding.problem for finding in (await both.verified()).findings] == ["cut_off"], "the broker remembers"
    both.start()
    async with both.control() as client:
        one = await source(client)
        with pytest.raises(Conflict, match="vouched for 2 records"):
            await one.written(credential(1))
        await one.written(asked(3))
        await one.written(asked(4))
        chain = (await client.status()).chains[0]
        assert (chain.records, chain.vouched) == (3, 0)
        assert "vouched for 2" in chain.broken
    assert "do not hold them" in both.audit.log.read_text()


async def test_a_flood_of_denials_is_counted_and_credential_events_are_not(both: Pair) -> None:
    async with both.control() as client:
        one = await source(client)
        for number in range(2000):
            while True:
                try:
                    one.note(denied("a.example.com" if number % 2 else "b.example.com"))
                    break
                except Unavailable:
                    await asyncio.sleep(0.001)
        for number in range(100):
            await one.written(CredentialRead(sandbox=ONE, id=f"c{number}", grant="g", name="n", port=443, reason="revoked"))
    both.audit.stop()
    records = both.records()
    repeated = [record for record in records if record["type"] == "repeated"]
    written = [record for record in records if record["type"] == "name"]
    assert 50 <= len(written) < 200
    assert len(written) + sum(record["count"] for record in repeated) == 2000
    assert {record["name"] for record in repeated} == {"a.example.com", "b.example.com"}
    assert all(record["reason"] == "unlisted" and record["second"] > 0 for record in repeated)
    assert sum(record["type"] == "credential" for record in records) == 100


async def test_a_disk_that_is_full_takes_no_more_records_and_loses_none(both: Pair) -> None:
    """Whoever cannot tell what happens lets nothing happen: so a socket that nobody reads is the answer to a disk that nothing fits on."""
    both.audit.stop()
    both.start(preexec=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (3000, resource.RLIM_INFINITY)))
    assert both.audit.process is not None
    pid = both.audit.process.pid
    async with both.control() as client:
        one, other = await source(client), await source(client, OTHER)
        with pytest.raises(NoCapacity, match="cannot be written"):  # noqa: PT012
            for number in range(100):
                await one.written(credential(number))
        one.note(*(asked(number) for number in range(7)))
        waits = asyncio.create_task(one.written(credential(100)))
        noted = 0
        with pytest.raises(Unavailable, match="is behind"):  # noqa: PT012
            while noted < 100_000:
                other.note(asked(noted, sandbox=OTHER))
                noted += 1
        late = await source(client, ONE, 2)
        late.note(asked(8))
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        with contextlib.suppress(NoCapacity):  # heard with the notes before it, or when the disk took those
            await waits
        await one.written(credential(101))
        assert (await client.status()).chains[0].lost == 0
        await other.written(credential(102))
        await late.written(credential(103))
    both.audit.stop()
    assert "no more are taken" in both.audit.log.read_text()
    records = both.records()
    assert sum(record["type"] == "request" and record["sandbox"] == ONE for record in records) == 8
    assert sum(record["type"] == "request" and record["sandbox"] == OTHER for record in records) == noted
    assert not any(record["type"] == "lost" for record in records)
    assert (await both.verified()).findings == ()


async def test_whoever_sends_no_record_is_hung_up_on_and_it_is_recorded(both: Pair) -> None:
    async with both.control() as client:
        one = await source(client)
        one.raw.send(b"\xc1 not a record")
        with pytest.raises(Unavailable):
            await one.written(asked(1))
        with pytest.raises(NotFound):
            await source(client, writer="nobody")
        await (await source(client, OTHER)).written(asked(2))
    assert [(record["sandbox"], record["type"]) for record in both.records()] == [(ONE, "malformed"), (OTHER, "request")]


async def test_an_ended_source_has_its_records_written_and_sends_no_more(both: Pair) -> None:
    async with both.control() as client:
        one = await source(client)
        one.note(*(asked(number) for number in range(50)))
        await client.end_source("gateway", ONE, 1)
        with pytest.raises(Unavailable):
            await one.written(asked(51))
        await (await source(client)).written(asked(52))
    assert len(both.records()) == 51


async def test_without_a_broker_records_are_kept_and_vouched_for_when_it_is_back(both: Pair) -> None:
    async with both.control() as client:
        one = await source(client)
        await one.written(asked(1))
        both.broker.kill()
        await one.written(asked(2))
        both.broker.start()
        await both.join(client)
        assert (await client.status()).chains[0].vouched == 2
    assert (await both.verified()).intact


async def test_a_chain_that_is_none_is_not_written_behind(both: Pair) -> None:
    async with both.control() as client:
        one = await source(client)
        await one.written(asked(1))
        await one.written(asked(2))
    both.audit.stop()
    path = segments(both.audit.data, "gateway")[0].path
    path.write_bytes(path.read_bytes().replace(b"www.example.com", b"ww2.example.com", 1))
    with pytest.raises(RuntimeError, match="not the end of the chain"):
        both.audit.start()


async def test_records_are_exported_by_what_is_wanted(both: Pair) -> None:
    async with both.control() as client:
        one, other = await source(client), await source(client, OTHER)
        await one.written(asked(1))
        await one.written(denied())
        await other.written(asked(2, name="b.example.com"))
    assert len(both.records(wanted=Wanted(sandbox=ONE))) == 2
    assert len(both.records(wanted=Wanted(sandbox=ONE, kinds=frozenset({"request"})))) == 1
    assert [record["name"] for record in both.records(wanted=Wanted(denied=True))] == ["evil.example.com"]
    assert len(both.records(wanted=Wanted(name="b.example.com"))) == 1
    middle = both.records()[1]["at"]
    assert len(both.records(wanted=Wanted(since=middle))) + len(both.records(wanted=Wanted(until=middle))) == 3


async def test_an_answer_is_no_way_around_the_counting_of_denials(both: Pair) -> None:
    async with both.control() as client:
        one = await source(client)
        await asyncio.gather(*(one.written(denied()) for _ in range(500)))
    both.audit.stop()
    records = both.records()
    assert len(records) < 150
    assert sum(record.get("count", 1) for record in records) == 500


async def test_no_kill_amid_rotation_and_retention_leaves_a_chain_that_is_wrong(tmp_path: Path) -> None:
    both = Pair(tmp_path, "--file-bytes", "2000", "--files", "2")
    both.start()
    moments = random.Random(7)
    try:
        for _ in range(10):
            async with both.control() as client:
                one = await source(client)
                ending = asyncio.get_running_loop().time() + moments.uniform(0.0, 0.15)
                while asyncio.get_running_loop().time() < ending:
                    await one.written(asked(1))
                await client.bind_broker(await self_made(both))  # a checkpoint, with files to remove
                one.note(*(asked(2) for _ in range(moments.randrange(20))))
                both.audit.kill()
            found = await both.verified()
            assert [finding.problem for finding in found.findings if finding.problem != "torn"] == []
            both.start()
        async with both.control():
            pass
        both.audit.stop()
        found = await both.verified()
        assert (found.unvouched, found.findings) == (0, ())
        assert found.records > 100
        assert len(segments(both.audit.data, "gateway")) <= 2
    finally:
        both.stop()


async def self_made(both: Pair) -> socket.socket:
    theirs, ours = pair()
    toward = BrokerControl.connect(both.broker.socket)
    await toward.bind_writer(theirs, ("gateway", "dialer"))
    toward.close()
    return ours


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a small tmpfs")
async def test_a_file_system_that_is_full_breaks_no_chain_and_loses_no_root(tmp_path: Path) -> None:
    room = tmp_path / "room"
    room.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", room], check=True)  # noqa: ASYNC221
    both = Pair(room)
    try:
        both.start()
        async with both.control() as client:
            one = await source(client)
            await one.written(credential(1))
            ballast = os.open(room / "ballast", os.O_WRONLY | os.O_CREAT)
            with contextlib.suppress(OSError):
                while True:
                    os.write(ballast, bytes(4096))
            os.close(ballast)
            with pytest.raises(NoCapacity):  # noqa: PT012
                for number in range(2, 100):
                    await one.written(credential(number))
            toward = BrokerControl.connect(both.broker.socket)
            told = {}
            with pytest.raises(NoCapacity):  # noqa: PT012
                for generation in range(2000):
                    told[generation] = await toward.make_root("base", generation)
            (room / "ballast").unlink()
            for generation, pem in told.items():
                assert await toward.root("base", generation) == pem
            await toward.make_root("base", 5000)
            await one.written(credential(1000))
            toward.close()
        both.audit.stop()
        assert (await both.verified()).findings == ()
        assert both.records()[-1]["id"] == "c1000"
    finally:
        both.stop()
        subprocess.run(["umount", room], check=True)  # noqa: ASYNC221
