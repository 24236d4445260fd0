"""Templates as files through a node over a fake host: what goes out comes in, and what is hostile leaves nothing."""

from __future__ import annotations

import asyncio
import os
import zlib
from pathlib import Path

import msgspec
import pytest
import zstandard

from space.config.artefacts import Store, TemplateManifest
from space.core.template.bundle import BLOCK, END, MIB, Block, Content, Header, Reader, head, pack
from space.model.errors import InvalidArgument, NoCapacity, NotFound, SpaceError
from space.node import blocks
from space.rpc import node_api as api
from space.rpc.session import Data, Session
from space.testing.memorynode import MemoryNode

SETTINGS = TemplateManifest("mine", "a" * 32, "a" * 32, "a" * 32, "a" * 32, 0, 1, "", "test", start=("serve",), env={"A": "1"})
BLOCKS = (Block(0, os.urandom(BLOCK)), Block(3 * BLOCK, os.urandom(BLOCK)), Block(4 * MIB - BLOCK, b"end".ljust(BLOCK, b"\0")))


@pytest.fixture(autouse=True)
def room(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fake host's disks are in memory, which says of itself that it has no room."""
    monkeypatch.setattr(blocks, "_free", lambda disk: 1 << 40)


def raw(*blocks: Block, settings: str = SETTINGS.settings(), disk_mib: int = 4, content: str = "") -> bytes:
    seen = Content()
    for block in blocks:
        seen.add(block)
    return head(Header(content or seen.digest(), disk_mib * MIB, settings)) + b"".join(map(pack, blocks)) + END


async def imported(session: Session, data: bytes, tenant: str = "acme", most_mib: int = 100, name: str = "") -> api.TemplateInfo:
    async with await session.open("template_import", api.TemplateImport(tenant, name, most_mib)) as stream:
        try:
            for at in range(0, len(data), 50_000):
                await stream.send(data[at : at + 50_000])
            await stream.close()
        except SpaceError:
            pass  # it was refused already, which is read below
        async for event in stream:
            return msgspec.msgpack.decode(event.payload, type=api.TemplateInfo)
    raise AssertionError("no answer")


async def exported(session: Session, digest: str, tenant: str = "acme") -> tuple[bytes, api.Exported]:
    data = bytearray()
    async with await session.open("template_export", api.TemplateTarget(tenant, digest)) as stream:
        await stream.close()
        async for event in stream:
            if not isinstance(event, Data):
                return bytes(data), msgspec.msgpack.decode(event.payload, type=api.Exported)
            data += event.payload
    raise AssertionError("no end")


def nothing_left(lab: MemoryNode) -> bool:
    return lab.host.staged == {} and lab.host.disks == {} and Store(Path("/none"), lab.host.store.own).own_templates() == []  # type: ignore[union-attr]


async def test_template_that_goes_out_comes_in_again_with_its_settings(tmp_path: Path) -> None:
    async with MemoryNode(tmp_path) as lab, lab.connected() as session:
        first = await imported(session, zstandard.compress(raw(*BLOCKS)))
        assert (first.name, first.tenant, first.start, first.env, first.disk_mib) == ("mine", "acme", ["serve"], {"A": "1"}, 4)
        disk = lab.host.disks[first.digest]
        assert [os.pread(disk, BLOCK, block.offset) for block in BLOCKS] == [block.data for block in BLOCKS]
        data, told = await exported(session, first.digest)
        assert (told.bytes, told.crc32) == (len(data), zlib.crc32(data))
        found = Reader().receive(zstandard.ZstdDecompressor().decompressobj().decompress(data))
        assert isinstance(found[0], Header)
        assert found[1:] == list(BLOCKS)
        assert b"acme" not in found[0].settings.encode()
        again = await imported(session, data)
        assert again == first
        other = await imported(session, data, tenant="other", name="theirs")
        assert (other.digest == first.digest, other.name) == (False, "theirs")
        with pytest.raises(NotFound):
            await exported(session, first.digest, tenant="other")


HOSTILE = {
    "its packing is broken": b"\x28\xb5\x2f\xfd" + b"\xff" * 100,
    "no template of this version": zstandard.compress(b"something else entirely"),
    "ends before its end": zstandard.compress(raw(*BLOCKS))[:-20_000],
    "it has the digest|the digest": zstandard.compress(raw(*BLOCKS, content="0" * 64)),
    "101 MiB, and at most 100": zstandard.compress(raw(*BLOCKS, disk_mib=101)),
    "its settings": zstandard.compress(raw(*BLOCKS, settings='{"name": "x"}')),
    "its settings: it has 'kernel'": zstandard.compress(raw(*BLOCKS, settings=SETTINGS.settings()[:-1] + ', "kernel": "x"}')),
    "it is a step": zstandard.compress(raw(*BLOCKS, settings=SETTINGS.settings().replace('"kind": "template"', '"kind": "step"'))),
    "more after its end": zstandard.compress(raw(*BLOCKS) + bytes(1 << 26)),
    "comes after": zstandard.compress(raw(*BLOCKS)[: -len(END)] + pack(BLOCKS[1]) * 3000),
}


@pytest.mark.parametrize("words", HOSTILE)
async def test_hostile_file_is_refused_and_leaves_nothing(tmp_path: Path, words: str) -> None:
    async with MemoryNode(tmp_path) as lab, lab.connected() as session:
        with pytest.raises(InvalidArgument, match=words):
            await imported(session, HOSTILE[words])
        assert nothing_left(lab)
        assert (await imported(session, zstandard.compress(raw(*BLOCKS)))).name == "mine"  # the node takes the next one


async def test_file_that_wants_much_memory_to_be_unpacked_is_refused(tmp_path: Path) -> None:
    parameters = zstandard.ZstdCompressionParameters.from_level(3, window_log=27)
    packer = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    data = packer.compress(raw(*BLOCKS)) + packer.flush()
    async with MemoryNode(tmp_path) as lab, lab.connected() as session:
        with pytest.raises(InvalidArgument, match="its packing is broken"):
            await imported(session, data)
        assert nothing_left(lab)


async def test_full_file_system_is_a_typed_error_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "_free", lambda disk: 0)
    async with MemoryNode(tmp_path) as lab, lab.connected() as session:
        with pytest.raises(NoCapacity, match="nearly full"):
            await imported(session, zstandard.compress(raw(*BLOCKS)))
        assert nothing_left(lab)


@pytest.mark.parametrize("op", ["stage_template", "seal_template"])
@pytest.mark.parametrize("when", ["before", "after"])
async def test_fault_of_the_host_leaves_nothing(tmp_path: Path, op: str, when: str) -> None:
    async with MemoryNode(tmp_path) as lab, lab.connected() as session:
        lab.host.fail_next(op, when=when)
        with pytest.raises(SpaceError):
            await imported(session, zstandard.compress(raw(*BLOCKS)))
        assert nothing_left(lab)


async def test_client_that_leaves_in_the_middle_leaves_nothing(tmp_path: Path) -> None:
    async with MemoryNode(tmp_path) as lab, lab.connected() as session:
        data = zstandard.compress(raw(*BLOCKS))
        async with await session.open("template_import", api.TemplateImport("acme")) as stream:
            await stream.send(data[: len(data) // 2])
            async with asyncio.timeout(5):
                while not lab.host.staged:  # noqa: ASYNC110 (of another part)
                    await asyncio.sleep(0.01)
        async with asyncio.timeout(5):
            while not nothing_left(lab):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
