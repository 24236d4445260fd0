"""A template as a file on real guests: it goes out, comes in under another name, and its sandboxes begin as its recipe says."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import msgspec
import pytest
from tests.machine.test_templates import RECIPE, bare, build, context, create, output, run, until

from space.rpc import node_api as api
from space.rpc.session import Data, Session
from space.testing.bareinstance import BareInstance

__all__ = ["bare"]


async def exported(session: Session, digest: str, place: Path) -> api.Exported:
    with place.open("wb") as file:
        async with await session.open("template_export", api.TemplateTarget("acme", digest)) as stream:
            await stream.close()
            async for event in stream:
                if not isinstance(event, Data):
                    return msgspec.msgpack.decode(event.payload, type=api.Exported)
                file.write(event.payload)
    raise AssertionError("no end")


async def imported(session: Session, place: Path, name: str) -> api.TemplateInfo:
    async with await session.open("template_import", api.TemplateImport("acme", name)) as stream:
        with place.open("rb") as file:
            while data := file.read(256 << 10):
                await stream.send(data)
        await stream.close()
        async for event in stream:
            return msgspec.msgpack.decode(event.payload, type=api.TemplateInfo)
    raise AssertionError("no answer")


@pytest.mark.timeout(200)
def test_template_goes_out_as_a_file_and_its_sandboxes_begin_as_before(bare: BareInstance, tmp_path: Path) -> None:
    async def work(session: Session) -> None:
        tar = context(files__app__data=b"data of the recipe", downloads__wheel__a=b"wheel")
        built, _, _ = await build(session, api.TemplateBuild("acme", RECIPE, inputs={"app": "1"}, downloads="1"), tar)
        began = time.monotonic()
        told = await exported(session, built.digest, tmp_path / "file")
        print(f"out: {told.bytes >> 20} MiB in {time.monotonic() - began:.1f} s")
        await session.call("template_drop", api.TemplateTarget("acme", built.digest))
        await session.call("prune", api.Prune())
        assert list(bare.instance.templates.iterdir()) == []

        began = time.monotonic()
        made = await imported(session, tmp_path / "file", "again")
        print(f"in: {made.used_mib} MiB in {time.monotonic() - began:.1f} s")
        assert (made.name, made.start, made.cwd, made.hooks) == ("again", built.start, built.cwd, built.hooks)
        again = await exported(session, made.digest, tmp_path / "second")
        assert again.content == told.content
        sandbox = await create(session, made.digest, {})
        assert await output(session, sandbox, "sh", "-c", "pwd; cat data") == "/opt/app\ndata of the recipe"
        await until(session, sandbox, ("cat", "/tmp/begun"), "begun\n")
        await asyncio.sleep(0)

    run(bare, work)
