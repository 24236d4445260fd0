"""Templates on real guests: a recipe becomes one, step by step, and sandboxes begin as it says."""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import io
import json
import subprocess
import tarfile
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import msgspec
import pytest
import uvloop

from space.config.settings import Settings
from space.core.wire import files
from space.model.errors import BuildFailed, Conflict, NotFound
from space.model.ids import new_sandbox_id
from space.rpc import node_api as api
from space.rpc.session import Data, Message, Session
from space.setup import apt
from space.testing.bareinstance import BESIDE_NODE, BareInstance, bare_instance

_ANSWER = msgspec.msgpack.Decoder(api.BuildStep | api.TemplateInfo | api.Gap)
RECIPE = """
version = 1
name = "tiny"
cwd = "/opt/app"
start = "echo begun > /tmp/begun; exec sleep 1000"

[base]
template = "base"

[env]
GREETING = "hello"

[ready]
run = "grep begun /tmp/begun"

[[step]]
copy = "app"
to = "/opt/app"
owner = "user"

[[step]]
run = "echo $GREETING > greeting; echo to the log; ls $SPACE_DOWNLOADS"
cwd = "/opt/app"

[[step]]
write = "in the end"
to = "/etc/motd"

[hooks]
10-here = "#!/bin/sh\\n"
"""


@pytest.fixture
def bare() -> Iterator[BareInstance]:
    with bare_instance(*BESIDE_NODE, "node") as one:
        yield one


def run(bare: BareInstance, work: Callable[[Session], Awaitable[None]]) -> None:
    async def with_session() -> None:
        session = await Session.connect(bare.instance.node_socket)
        try:
            await work(session)
        finally:
            await session.aclose()

    uvloop.run(with_session())


def context(**files: bytes) -> bytes:
    stored = io.BytesIO()
    with tarfile.open(fileobj=stored, mode="w") as archive:
        for name, data in files.items():
            entry = tarfile.TarInfo(name.replace("__", "/"))
            entry.size = len(data)
            entry.mode = 0o644
            archive.addfile(entry, io.BytesIO(data))
    return stored.getvalue()


async def build(session: Session, asked: api.TemplateBuild, tar: bytes) -> tuple[api.TemplateInfo, list[api.BuildStep], bytes]:
    steps: list[api.BuildStep] = []
    said = bytearray()
    built: api.TemplateInfo | None = None
    async with await session.open("template_build", asked) as stream:
        await stream.send(tar)
        await stream.close()
        async for event in stream:
            if isinstance(event, Data):
                said += event.payload
                continue
            match _ANSWER.decode(event.payload):
                case api.BuildStep() as step:
                    steps.append(step)
                case api.TemplateInfo() as info:
                    built = info
    assert built is not None, said.decode()
    return built, steps, bytes(said)


async def create(session: Session, digest: str, env: dict[str, str], tenant: str = "acme") -> str:
    asked = api.Create(new_sandbox_id(), tenant, 1, "tiny", 1, 256, 2048, env, digest=digest)
    async with await session.open("create", asked, finish=True) as stream:
        seen = [msgspec.msgpack.decode(event.payload, type=api.SandboxState) async for event in stream]
    assert seen[-1].phase == "running", seen[-1].reason
    return asked.sandbox


async def output(session: Session, sandbox: str, *argv: str) -> str:
    async with await session.open("exec", api.Exec(sandbox, list(argv)), finish=True) as stream:
        return b"".join([event.payload async for event in stream if isinstance(event, Data)]).decode()


async def until(session: Session, sandbox: str, argv: tuple[str, ...], wanted: str) -> None:
    async with asyncio.timeout(30):
        while await output(session, sandbox, *argv) != wanted:
            pass


@pytest.mark.timeout(300)
def test_recipe_becomes_a_template_whose_sandboxes_begin_as_it_says(bare: BareInstance) -> None:
    tar = context(files__app__data=b"data of the recipe", downloads__wheel__a=b"wheel")
    asked = api.TemplateBuild("acme", RECIPE, inputs={"app": "1"}, downloads="1")

    async def work(session: Session) -> None:
        began = time.monotonic()
        built, steps, said = await build(session, asked, tar)
        print(f"built in {time.monotonic() - began:.1f} s: {[(step.title, step.took_ms) for step in steps if step.state == 'done']}")
        assert b"to the log\nwheel\n" in said
        assert [step.number for step in steps if step.state == "done"] == [1, 2, 3, 4]
        assert (built.name, built.tenant, built.cwd, built.hooks) == ("tiny", "acme", "/opt/app", ["10-here"])

        began = time.monotonic()
        again, cached, _ = await build(session, asked, tar)
        print(f"again in {time.monotonic() - began:.2f} s")
        assert again == built
        assert {step.state for step in cached} == {"cached"}

        other = msgspec.structs.replace(asked, recipe=RECIPE.replace("in the end", "another end"))
        changed, steps, _ = await build(session, other, tar)
        assert [step.state for step in steps] == ["cached", "cached", "begun", "done", "begun", "done"]
        assert changed.digest != built.digest

        sandbox = await create(session, built.digest, {"MINE": "1"})
        assert await output(session, sandbox, "sh", "-c", "pwd; cat greeting data; echo; echo $GREETING $MINE; cat /etc/motd") == (
            "/opt/app\nhello\ndata of the recipe\nhello 1\nin the end"
        )
        await until(session, sandbox, ("cat", "/tmp/begun"), "begun\n")
        assert await output(session, sandbox, "ls", "/etc/space/restore.d", "/dev/shm") == "/dev/shm:\n\n/etc/space/restore.d:\n10-here\n"

        with pytest.raises(NotFound):
            await create(session, built.digest, {}, tenant="other")
        target = api.TemplateTarget("acme", built.digest)
        with pytest.raises(Conflict, match="has 1 sandboxes"):
            await session.call("template_drop", target)
        await session.call("template_drop", api.TemplateTarget("other", built.digest))  # it has no such thing
        await session.call("delete", api.Target(sandbox))
        await session.call("template_drop", target)
        listed = msgspec.msgpack.decode(await session.call("templates", api.Tenant("acme")), type=api.TemplateList).templates
        assert [each.digest for each in listed if each.tenant] == [changed.digest]
        rebaked = msgspec.msgpack.decode(
            await session.call("template_rebake", api.TemplateTarget("acme", changed.digest)), type=api.TemplateInfo
        )
        assert await output(session, await create(session, rebaked.digest, {}), "cat", "/etc/motd") == "another end"
        pruned = msgspec.msgpack.decode(await session.call("prune", api.Prune()), type=api.Pruned)
        assert len(pruned.steps) == 6

    run(bare, work)


@pytest.mark.timeout(120)
def test_step_that_fails_is_named_and_what_was_done_is_kept(bare: BareInstance) -> None:
    recipe = 'version = 1\n[base]\ntemplate = "base"\n[[step]]\nrun = "true"\n[[step]]\nrun = "echo words; exit 3"\n'

    async def work(session: Session) -> None:
        asked = api.TemplateBuild("acme", recipe)
        for _ in range(2):
            with pytest.raises(BuildFailed, match=r"step 2 \(run echo words; exit 3\): it ended with status 3"):
                await build(session, asked, context())
        listed = msgspec.msgpack.decode(await session.call("templates", api.Tenant("acme")), type=api.TemplateList).templates
        assert {each.tenant for each in listed} == {""}  # set-up's alone: nothing of the tenant's
        assert len(list(bare.instance.templates.iterdir())) == 1
        info = msgspec.msgpack.decode(await session.call("info", api.Empty()), type=api.NodeInfo)
        assert (info.sandboxes, info.memory_used_mib) == (0, 0)

    run(bare, work)


IMAGE = """
version = 1
name = "image"

[base]
oci = "image.tar"

[ready]
run = ["grep", "up", "/tmp/up"]

[[step]]
run = "echo more > /more"
"""


def oci_archive(place: Path) -> bytes:
    """An image of busybox, out of Debian's package of it, as an archive of a layout."""
    deb = apt.download(apt.show("busybox-static"), place / "deb")
    files = subprocess.run(["dpkg-deb", "--fsys-tarfile", deb], check=True, capture_output=True).stdout
    links = io.BytesIO()
    with tarfile.open(fileobj=links, mode="w") as archive:
        for name in ("sh", "sleep", "echo", "cat", "grep", "sync", "ls", "id"):
            link = tarfile.TarInfo(f"bin/{name}")
            link.type, link.linkname = tarfile.SYMTYPE, "busybox"
            archive.addfile(link)
        gone = tarfile.TarInfo("usr/share/doc/.wh.busybox-static")
        archive.addfile(gone)
    stored: dict[str, bytes] = {"oci-layout": b'{"imageLayoutVersion": "1.0.0"}'}

    def blob(data: bytes, kind: str) -> dict[str, object]:
        digest = hashlib.sha256(data).hexdigest()
        stored[f"blobs/sha256/{digest}"] = data
        return {"mediaType": f"application/vnd.oci.image.{kind}", "digest": f"sha256:{digest}", "size": len(data)}

    layers = [blob(gzip.compress(files), "layer.v1.tar+gzip"), blob(links.getvalue(), "layer.v1.tar")]
    inner = {"Env": ["PATH=/bin", "FROM=image"], "Cmd": ["/bin/sh", "-c", "echo up > /tmp/up; exec sleep 1000"], "WorkingDir": "/tmp"}
    config = blob(json.dumps({"config": inner}).encode(), "config.v1+json")
    manifest = blob(json.dumps({"schemaVersion": 2, "config": config, "layers": layers}).encode(), "manifest.v1+json")
    stored["index.json"] = json.dumps({"schemaVersion": 2, "manifests": [manifest]}).encode()
    return context(**stored)


@pytest.mark.timeout(300)
def test_image_of_debians_packages_becomes_a_template_whose_start_command_runs(bare: BareInstance, tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    archive = oci_archive(tmp_path)

    async def work(session: Session) -> None:
        asked = api.TemplateBuild("acme", IMAGE, inputs={"image.tar": hashlib.sha256(archive).hexdigest()})
        built, steps, said = await build(session, asked, context(**{"files/image.tar": archive}))
        print([(step.title, step.took_ms) for step in steps if step.state == "done"], said.decode())
        assert (built.start, built.user, built.cwd) == (["/bin/sh", "-c", "echo up > /tmp/up; exec sleep 1000"], "root", "/tmp")
        again, cached, _ = await build(session, asked, context(**{"files/image.tar": archive}))
        assert (again.digest, {step.state for step in cached}) == (built.digest, {"cached"})
        sandbox = await create(session, built.digest, {})
        await until(session, sandbox, ("cat", "/tmp/up"), "up\n")
        said_there = await output(session, sandbox, "sh", "-c", "cat /more; echo $FROM; ls /; echo doc $(ls /usr/share/doc); id")
        assert said_there.startswith("more\nimage\nbin\ndev\netc\nhome\n")
        assert "\ndoc\nuid=0(root) gid=0(root)" in said_there

    run(bare, work)


@pytest.mark.timeout(300)
def test_hostile_image_is_refused_in_the_builder(bare: BareInstance) -> None:
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as hostile:
        hostile.addfile(tarfile.TarInfo("../../etc/cron.d/x"))
    blobs = {"layer": layer.getvalue(), "config": b'{"config": {}}'}
    named = {key: {"digest": f"sha256:{hashlib.sha256(data).hexdigest()}", "size": len(data)} for key, data in blobs.items()}
    named["layer"]["mediaType"] = "application/vnd.oci.image.layer.v1.tar"
    manifest = json.dumps({"config": named["config"], "layers": [named["layer"]]}).encode()
    digest = hashlib.sha256(manifest).hexdigest()
    index = {
        "manifests": [{"mediaType": "application/vnd.oci.image.manifest.v1+json", "digest": f"sha256:{digest}", "size": len(manifest)}]
    }
    stored = {f"blobs/sha256/{hashlib.sha256(data).hexdigest()}": data for data in (*blobs.values(), manifest)}
    archive = context(**stored, **{"index.json": json.dumps(index).encode()})

    async def work(session: Session) -> None:
        asked = api.TemplateBuild("acme", IMAGE, inputs={"image.tar": "1"})
        with pytest.raises(BuildFailed, match=r"step 1 \(unpack image image.tar\): .*a path leads out of the tree"):
            await build(session, asked, context(**{"files/image.tar": archive}))
        assert list(bare.instance.templates.iterdir()) == []

    run(bare, work)


@pytest.fixture
def keeping() -> Iterator[BareInstance]:
    """A node that keeps templates warm."""
    with bare_instance(*BESIDE_NODE, "node", settings=Settings(accelerator="tcg", warm_templates=1)) as one:
        yield one


@pytest.mark.timeout(200)
def test_build_ends_warm_and_a_sandbox_of_it_is_a_clone_whose_start_command_runs_on(keeping: BareInstance) -> None:
    recipe = (
        'version = 1\nname = "counter"\nstart = "echo $$ > /tmp/begun; exec sleep 1000"\n[base]\ntemplate = "base"\n'
        '[ready]\nrun = "test -s /tmp/begun"\n[hooks]\n10-note = "#!/bin/sh\\necho restored > /tmp/restored\\n"\n'
    )

    async def work(session: Session) -> None:
        began = time.monotonic()
        built, _, said = await build(session, api.TemplateBuild("acme", recipe), context())
        print(f"built and warm in {time.monotonic() - began:.1f} s", said.decode())
        began = time.monotonic()
        asked = api.Create(new_sandbox_id(), "acme", 1, "counter", 1, 512, 2048, {}, digest=built.digest)
        async with await session.open("create", asked) as stream:
            await stream.close()
            states = [msgspec.msgpack.decode(event.payload, type=api.SandboxState) async for event in stream]
        print(f"created in {time.monotonic() - began:.2f} s")
        assert (states[-1].phase, states[-1].start) == ("running", "warm")
        sandbox = states[-1].sandbox
        assert await output(session, sandbox, "sh", "-c", "cat /tmp/restored; cat /proc/$(cat /tmp/begun)/comm") == "restored\nsleep\n"

    run(keeping, work)


SLOW = """
version = 1
name = "slow"
start = "sleep 5; exec python3 -m http.server 8000"
[base]
template = "base"
[ready]
run = ["bash", "-c", "exec 3<>/dev/tcp/127.0.0.1/8000"]
"""


@pytest.mark.timeout(200)
def test_who_connects_to_a_sandbox_that_booted_waits_until_what_it_starts_is_ready(bare: BareInstance) -> None:
    """As in a clone, where it is ready from the beginning; and a port that nothing listens on is told at once after that."""

    async def work(session: Session) -> None:
        built, _, said = await build(session, api.TemplateBuild("acme", SLOW), context())
        print(said.decode())
        sandbox = await create(session, built.digest, {})

        async def connected(port: int) -> float:
            began = time.monotonic()
            request = api.Forward(sandbox, msgspec.msgpack.encode(files.Connect(port)))
            async with await session.open("connect", request) as stream:
                first = await anext(aiter(stream))
                assert isinstance(first, Message), first
            return time.monotonic() - began

        waited = await connected(8000)
        print(f"it was open after {waited:.1f} s")
        with pytest.raises(NotFound):
            await connected(9)
        assert await connected(8000) < waited
        listed = msgspec.msgpack.decode(await session.call("processes", api.Target(sandbox)), type=api.ProcessList).processes
        assert len(listed) == 1, "the start command, and none of the checks"
        await session.call("delete", api.Target(sandbox))

    run(bare, work)
