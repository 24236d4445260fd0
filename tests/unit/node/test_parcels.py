"""Suspended sandboxes as files through a node over a fake host: what goes out comes in as another, what is hostile leaves nothing."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
import zstandard
from tests.unit.node.test_lives import created, gone, guest_of, last, node, quiet, until, wake

from space.core.template.bundle import END, SANDBOX, Block, Header, Reader, head, pack
from space.model.errors import Conflict, InvalidArgument, NotFound, SpaceError
from space.model.ids import new_sandbox_id
from space.node import blocks, parcels
from space.rpc import life_api
from space.rpc import node_api as api
from space.rpc.session import Data, Session
from space.testing.memorynode import MemoryNode


@pytest.fixture(autouse=True)
def room(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fake host's disks are in memory, which says of itself that it has no room."""
    monkeypatch.setattr(blocks, "_free", lambda disk: 1 << 40)


async def exported(session: Session, sandbox: str) -> bytes:
    data = bytearray()
    async with await session.open("sandbox_export", api.Target(sandbox), finish=True) as stream:
        async for event in stream:
            if not isinstance(event, Data):
                assert msgspec.msgpack.decode(event.payload, type=api.Exported).bytes == len(data)
                return bytes(data)
            data += event.payload
    raise AssertionError("no end")


async def imported(session: Session, data: bytes, sandbox: str = "", tenant: str = "acme", most_mib: int = 4096) -> life_api.Imported:
    asked = life_api.Import(sandbox or new_sandbox_id(), tenant, most_mib)
    async with await session.open("sandbox_import", asked) as stream:
        try:
            for at in range(0, len(data), 50_000):
                await stream.send(data[at : at + 50_000])
            await stream.close()
        except SpaceError:
            pass  # it was refused already, which is read below
        async for event in stream:
            return msgspec.msgpack.decode(event.payload, type=life_api.Imported)
    raise AssertionError("no answer")


async def suspended(sim: MemoryNode, session: Session) -> tuple[str, bytes]:
    """One, and the file of it."""
    sandbox = await created(session)
    guest_of(sim, sandbox).trees[b"/tmp/x"] = b"here"
    assert (await last(session, "suspend", api.Target(sandbox))).phase == "suspended"
    return sandbox, await exported(session, sandbox)


def unpacked(data: bytes) -> tuple[Header, list[Block]]:
    found = Reader(magic=SANDBOX).receive(zstandard.ZstdDecompressor().decompressobj().decompress(data))
    assert isinstance(found[0], Header)
    return found[0], [each for each in found[1:] if isinstance(each, Block)]


def packed(header: Header, found: list[Block]) -> bytes:
    return zstandard.compress(head(header, SANDBOX) + b"".join(map(pack, found)) + END)


async def test_a_suspended_sandbox_goes_out_and_comes_in_as_another_that_goes_on_from_the_same_memory(tmp_path: Path) -> None:
    async with node(tmp_path) as (sim, session):
        first, data = await suspended(sim, session)
        other = new_sandbox_id()
        told = await imported(session, data, other)
        assert (told.template, told.cpus, told.memory_mib, told.disk_mib, told.env) == ("base", 1, 512, 2048, {"GREETING": "hi"})
        await last(session, "delete", api.Target(first))
        state = await last(session, "wake", wake(other, 2))
        assert (state.phase, state.start) == ("running", "restore")
        guest = guest_of(sim, other)
        assert guest.trees[b"/tmp/x"] == b"here"
        assert guest.imprinted is not None
        assert guest.imprinted.hostname == other
        assert sim.node.find(api.Target(other)).record.forked  # grants know that its memory was another's
        await gone(sim, session, other)


async def test_an_imported_sandbox_is_there_after_the_node_was_killed(tmp_path: Path) -> None:
    async with MemoryNode(tmp_path) as sim:
        async with sim.connected() as session:
            _, data = await suspended(sim, session)
            other = new_sandbox_id()
            await imported(session, data, other)
        sim.crash()
        await sim.start()
        async with sim.connected() as session:
            state = await last(session, "wake", wake(other, 2))
            assert (state.phase, state.start) == ("running", "restore")


async def test_only_what_is_suspended_goes_out(tmp_path: Path) -> None:
    async with node(tmp_path) as (sim, session):
        sandbox = await created(session)
        with pytest.raises(Conflict, match="is running, and a file is made of one that is suspended"):
            await exported(session, sandbox)
        await last(session, "stop", api.Target(sandbox))
        with pytest.raises(Conflict, match="is stopped"):
            await exported(session, sandbox)
        await gone(sim, session, sandbox)


def _other_settings(header: Header) -> Header:
    raw = json.loads(header.settings)
    raw["body"] = raw["body"].replace('"GREETING"', '"LD_PRELOAD"')
    return Header(header.content, header.disk_bytes, json.dumps(raw))


def _own_seal(header: Header) -> Header:
    raw = json.loads(header.settings)
    return Header(header.content, header.disk_bytes, json.dumps({**raw, "seal": "0" * 64}))


CHANGED: dict[str, Callable[[Header], Header]] = {
    "its sandbox is another": _other_settings,
    "it has a seal of its own": _own_seal,
    "it has none": lambda header: Header(header.content, header.disk_bytes, json.dumps({"body": json.loads(header.settings)["body"]})),
    "it is larger": lambda header: Header(header.content, header.disk_bytes + (1 << 20), header.settings),
    "its blocks are others": lambda header: Header("0" * 64, header.disk_bytes, header.settings),
    "its seal is no text": lambda header: Header(header.content, header.disk_bytes, json.dumps({"body": "{}", "seal": 7})),
    "it is no object": lambda header: Header(header.content, header.disk_bytes, "7"),
}


@pytest.mark.parametrize("words", CHANGED)
async def test_a_memory_that_this_installation_did_not_store_is_refused_before_anything_is_written(tmp_path: Path, words: str) -> None:
    async with node(tmp_path) as (sim, session):
        sandbox, data = await suspended(sim, session)
        header, found = unpacked(data)
        with pytest.raises(InvalidArgument, match="no sandbox that can be imported"):
            await imported(session, packed(CHANGED[words](header), found))
        assert "stage_snapshot" not in sim.host.calls
        assert (await imported(session, packed(header, found))).disk_mib == 2048  # as it was, it is taken
        assert [each.record.sandbox == sandbox for each in sim.node._sandboxes.values()].count(True) == 1


async def test_a_file_of_another_installation_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with node(tmp_path / "a") as (sim, session):
        _, data = await suspended(sim, session)
    monkeypatch.setattr(MemoryNode, "export_key", b"k" * 32)
    async with node(tmp_path / "b") as (sim, session):
        with pytest.raises(InvalidArgument, match="not stored by this installation"):
            await imported(session, data)
        assert sim.host.leftovers() == []


HALF: dict[str, Callable[[bytes], bytes]] = {
    "its packing ends before its end": lambda data: data[:-100],
    "it ends before its end": lambda data: zstandard.compress(zstandard.ZstdDecompressor().decompressobj().decompress(data)[:-20_000]),
    "a block is another": lambda data: packed(unpacked(data)[0], [Block(each.offset, each.data[::-1]) for each in unpacked(data)[1]]),
    "a block is missing": lambda data: packed(unpacked(data)[0], unpacked(data)[1][1:]),
}


@pytest.mark.parametrize("words", HALF)
async def test_a_file_that_is_not_whole_leaves_nothing(tmp_path: Path, words: str) -> None:
    async with node(tmp_path) as (sim, session):
        sandbox, data = await suspended(sim, session)
        with pytest.raises(InvalidArgument, match="no sandbox that can be imported"):
            await imported(session, HALF[words](data))
        await quiet(sim)
        assert ("stage_snapshot" in sim.host.calls) is not words.startswith("its packing")
        await gone(sim, session, sandbox)


async def test_a_client_that_leaves_in_the_middle_leaves_nothing(tmp_path: Path) -> None:
    async with node(tmp_path) as (sim, session):
        sandbox, data = await suspended(sim, session)
        async with await session.open("sandbox_import", life_api.Import(new_sandbox_id(), "acme")) as stream:
            await stream.send(data[: len(data) - 20])
            await until(lambda: "stage_snapshot" in sim.host.calls)
        await until(lambda: not sim.host.coming)
        await gone(sim, session, sandbox)


async def test_a_sandbox_comes_in_only_where_its_template_is_the_tenants_and_its_disk_fits(tmp_path: Path) -> None:
    async with node(tmp_path) as (sim, session):
        sandbox, data = await suspended(sim, session)
        with pytest.raises(InvalidArgument, match="2048 MiB, and 100 MiB may come"):
            await imported(session, data, most_mib=100)
        monkey = sim.node.templates.own

        def refuse(tenant: str, digest: str) -> object:
            raise NotFound(f"template {digest} is not on this machine")

        sim.node.templates.own = refuse  # type: ignore[assignment, method-assign]
        with pytest.raises(NotFound, match="its template base"):
            await imported(session, data)
        sim.node.templates.own = monkey  # type: ignore[method-assign]
        with pytest.raises(Conflict, match="is here already"):
            await imported(session, data, sandbox)
        await quiet(sim)
        await gone(sim, session, sandbox)


async def test_only_so_many_are_on_their_way_at_once(tmp_path: Path) -> None:
    async with node(tmp_path) as (sim, session):
        _, data = await suspended(sim, session)
        opened = [await session.open("sandbox_import", life_api.Import(new_sandbox_id(), "acme")) for _ in range(2)]
        await asyncio.sleep(0.05)
        with pytest.raises(SpaceError, match="2 sandboxes are on their way"):
            await imported(session, data)
        for stream in opened:
            async with stream:
                pass
        await until(lambda: sim.node.parcels._busy == 0)
        assert (await imported(session, data)).disk_mib == 2048


def test_the_key_is_made_once_and_is_the_nodes_alone(tmp_path: Path) -> None:
    first = parcels.key(tmp_path / "export.key")
    assert (len(first), parcels.key(tmp_path / "export.key")) == (32, first)
    assert (tmp_path / "export.key").stat().st_mode & 0o777 == 0o600
    assert [each.name for each in tmp_path.iterdir()] == ["export.key"]
